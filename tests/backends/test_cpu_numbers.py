"""What is computed from numbers on the CPU alone is computed by the kernels of the GPU that read it."""

import pytest
import torch
from torch.nn.functional import dropout, gelu

import aotkit
from aotkit.backends.inductor_graphs import cpu_numbers
from aotkit.joint.running import JOINT_TAGS
from aotkit.passes.nodes import IN_KERNELS
from aotkit.torch_private import inductor


def draws(x, bias):
    return dropout(gelu(x + bias), 0.1)


def scaled(x, bias, scale):
    return (x + bias).sigmoid() * (scale.exp() + 1)


def numbers_given_to_backward(compiled, *args):
    """The names of what the backward graph gets that has no dimension."""
    backward = compiled.graphs(*args).backward.graph
    return [n.name for n in backward.find_nodes(op="placeholder") if n.meta["val"].dim() == 0]


@pytest.fixture
def arguments(device, monkeypatch):
    """On a GPU; else on a CPU that is taken for one."""
    if device.type == "cpu":
        monkeypatch.setattr(cpu_numbers, "_is_on_gpu", lambda node: True)
        monkeypatch.setattr(inductor, "stores_keys", lambda device: False)
    return tuple(torch.randn(*shape, device=device, requires_grad=True) for shape in ((8, 16), (16,)))


@pytest.mark.sweep
def test_of_random_draws_the_seed_of_the_call_is_kept_at_the_most(partitioner, arguments):
    compiled = aotkit.compile(draws, backend="inductor", partition=partitioner)
    torch.manual_seed(0)
    compiled(*arguments).sum().backward()
    assert set(numbers_given_to_backward(compiled, *arguments)) <= {"primals_3"}
    kernels = compiled.explain(*arguments).kernels
    assert len(kernels.of("forward")) == 1
    assert {k.kernel.language for k in kernels.kernels} == {"C++" if arguments[0].device.type == "cpu" else "Triton"}


@pytest.mark.parametrize("partition", ["min_cut", pytest.param("nx_min_cut", marks=pytest.mark.sweep)])
def test_of_what_is_computed_from_a_number_the_number_is_kept(partition, arguments):
    scale = torch.tensor(0.3)
    compiled = aotkit.compile(scaled, backend="inductor", partition=partition)
    compiled(*arguments, scale).sum().backward()
    assert set(numbers_given_to_backward(compiled, *arguments, scale)) <= {"primals_3", "clone_default"}  # or a copy


def test_pieces_of_a_joint_graph_keep_the_tag(arguments):
    """With it, a fault is reproduced by the partition that had it."""
    arguments = *arguments, torch.tensor(0.3)
    compiled = aotkit.compile(scaled, backend="inductor", partition="min_cut")
    compiled(*arguments)
    tagged = [node for node in compiled.graphs(*arguments).joint.graph.nodes if IN_KERNELS in node.meta]
    assert tagged
    assert IN_KERNELS in JOINT_TAGS
