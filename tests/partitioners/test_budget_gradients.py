"""`nx_min_cut.budget` on networks with dropout, batch norm and skip connections: gradients differ in no bit."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy

import aotkit
from aotkit.benchmark.models import ResNet, UNet
from aotkit.partitioners import nx_min_cut
from aotkit.partitioners.rematerialization.devices import Device

DEVICE = Device(bandwidth=1e12, flops=1e14, launch=0.0)


class GPT2(nn.Module):
    def __init__(self):
        super().__init__()
        transformers = pytest.importorskip("transformers", reason="needs Hugging Face transformers")
        config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2, use_cache=False)
        self.model = transformers.GPT2LMHeadModel(config)

    def forward(self, tokens):
        return F.cross_entropy(self.model(tokens).logits.flatten(0, 1), tokens.flatten())


NETWORKS = {
    "gpt2": (GPT2, lambda: [torch.arange(32).view(2, 16)], "dynamo"),
    "resnet": (lambda: ResNet((1,), classes=4), lambda: [torch.randn(2, 3, 32, 32), torch.tensor([1, 3])], "aot"),
    "unet": (
        lambda: UNet((8,)),
        lambda: [torch.randn(2, 3, 16, 16), torch.ones(2, 16, 16, dtype=torch.long)],
        "aot",
    ),
}


def compiled(name, partition, **options):
    make, _, capture = NETWORKS[name]
    torch.manual_seed(0)
    return aotkit.compile(make().train(), partition=partition, capture=capture, **options)


def inputs(name):
    torch.manual_seed(1)
    return NETWORKS[name][1]()


def trained(name, partition):
    """Loss, gradients, and the statistics afterwards."""
    model = compiled(name, partition, backend="nop", check=False)
    torch.manual_seed(2)
    loss = model(*inputs(name))
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters())), *model.buffers()]


@pytest.mark.sweep
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_those_of_the_default_partition_bit_for_bit(name):
    """Also at the smallest possible budget."""
    reference = trained(name, "default")
    for limit in (0.6, 0):
        try:
            found = trained(name, nx_min_cut.budget(limit, DEVICE))
        except aotkit.CompileError as e:
            found = trained(name, nx_min_cut.budget(smallest_budget(e), DEVICE))
        assert all(map(torch.equal, found, reference)), limit


def smallest_budget(error):
    return int(re.search(r"smallest possible budget is (\d+) bytes \(.*B\)", str(error))[1])


@pytest.mark.sweep
@pytest.mark.parametrize("name", NETWORKS)
def test_the_check_passes_with_inductor(name):
    make, _, capture = NETWORKS[name]
    partition = nx_min_cut.budget(0.4, DEVICE)
    torch.manual_seed(0)
    assert aotkit.check(make().train(), *inputs(name), backend="inductor", partition=partition, capture=capture).passed


def test_an_impossible_budget_is_an_error_of_compile_that_names_one_that_works():
    w = torch.randn(64, 64, requires_grad=True)

    def compiled(limit):
        return aotkit.compile(
            lambda x: F.dropout((x @ w).sin(), 0.5).cos().sum(),
            backend="nop", partition=nx_min_cut.budget(limit, DEVICE), random="torch",
        )  # fmt: skip

    x = torch.randn(64, 64)
    with pytest.raises(aotkit.CompileError) as e:
        compiled(100)(x)
    least = smallest_budget(e.value)
    with pytest.raises(aotkit.CompileError, match=f"{least} bytes"):
        compiled(least - 1)(x)
    compiled(least)(x).backward()
    assert w.grad.count_nonzero()


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_checkpointed_values_are_recomputed_and_their_draws_replayed(run_checkpointed, fraction):
    graphs = run_checkpointed(nx_min_cut.budget(fraction, DEVICE))
    backward = [str(node.target) for node in graphs.backward.graph.nodes]
    assert backward.count("run_with_rng_state") == 2
    # The four products of the two blocks run again; each of five has two gradients.
    assert backward.count("aten.mm.default") >= 4 + 5 * 2


def tagging(name, budget, **tags):
    """A partitioner that tags one node before it keeps within a budget."""

    def cut(joint, joint_inputs, **keywords):
        for node in joint.graph.nodes:
            if node.name == name:
                node.meta.update(tags)
        return nx_min_cut.budget(budget, DEVICE)(joint, joint_inputs, **keywords)

    return cut


@pytest.mark.parametrize("policy", [CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE])
def test_what_a_policy_saves_is_not_recomputed(split, policy):
    x, w = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)

    cut = tagging("mul", 64 * 64 * 4, recompute=policy)
    graphs = split(cut, lambda x, w: (x * w).sin().exp(), x, w)
    assert "mul" not in {n.name for n in graphs.backward.graph.nodes if n.op == "call_function"}


@pytest.mark.parametrize("policy", [CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE])
def test_what_a_policy_recomputes_is_not_saved_though_the_budget_allows_it(split, policy):
    x, w = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)

    cut = tagging("mm", 1.0, recompute=policy, ac_graph_id=0)
    graphs = split(cut, lambda x, w: (x @ w).sin() @ w, x, w)
    assert "mm" in {n.name for n in graphs.backward.graph.nodes if n.op == "call_function"}
