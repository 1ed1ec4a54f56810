"""The order of the backward pass: the peak of memory falls, and nothing else changes."""

import functools
import logging
import re
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import aotkit
from aotkit.benchmark.capture import joint_graph
from aotkit.benchmark.evaluation import evaluate
from aotkit.benchmark.models import DEFAULT_MODELS
from aotkit.benchmark.partitioners import decomposition_table
from aotkit.benchmark.partitioners import joint_of as large_joint_of
from aotkit.joint.running import partition_copy
from aotkit.joint.sides import Sides
from aotkit.partitioners import nx_min_cut
from aotkit.partitioners.rematerialization.devices import Device
from aotkit.partitioners.rematerialization.order import Task, frees_first, lower_peak
from tests.partitioners.test_peak import MODELS, joint_of

DEVICE = Device(bandwidth=1e12, flops=1e14, launch=0.0)
KiB = 1024
PARTITIONS = {
    "fewest bytes": nx_min_cut.partition,
    "budget": nx_min_cut.budget(1.0, DEVICE),
    "peak": nx_min_cut.peak(1.0, DEVICE),
}
each_partition = pytest.mark.parametrize("partition", PARTITIONS.values(), ids=PARTITIONS)


class TwoProducts(nn.Module):
    """The gradient of `w @ x`, 64 KiB, is computed before that of `v`, which is the last to read `w @ x`."""

    def __init__(self):
        super().__init__()
        self.w, self.v = nn.Parameter(torch.randn(64, 8)), nn.Parameter(torch.randn(4, 64))

    def forward(self, x):
        return self.v @ (self.w @ x)


@pytest.fixture
def as_before(monkeypatch):
    """Partition without the pass."""

    def run(partition, joint):
        with monkeypatch.context() as patch:
            patch.setattr(nx_min_cut, "lower_peak", lambda backward, sides: None)
            return partition_copy(partition, joint)

    return run


@functools.cache
def traced(name):
    """A network of test_peak, or a large one."""
    if name in MODELS:
        return joint_of(name)
    return large_joint_of(name.removeprefix("large "), decomposition_table("inductor"))


def names(gm):
    return [node.name for node in gm.graph.nodes]


@each_partition
def test_the_gradient_that_frees_comes_first(partition, as_before):
    """Together with `w @ x` (64 KiB), the outputs and their gradient (4 KiB each) and that of `v` (1 KiB) are alive."""
    joint = joint_graph(TwoProducts(), (torch.randn(8, 256),))
    forward, backward = as_before(partition, joint)
    before = evaluate(forward, backward, joint.num_outputs)
    assert before.peak_bytes == before.fused_peak_bytes == (64 + 64 + 4 + 4 + 1) * KiB
    after = evaluate(*partition_copy(partition, joint), joint.num_outputs)
    assert after.peak_bytes == after.fused_peak_bytes == (64 + 4 + 4 + 1) * KiB
    assert after.saved_bytes == before.saved_bytes
    assert after.seconds == before.seconds


QUICK = ("mlp",)
SLOW = [*(name for name in MODELS if name not in QUICK), *(f"large {name}" for name in DEFAULT_MODELS)]


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.sweep) for name in SLOW)])
def test_no_peak_is_higher_and_the_same_is_computed(name, as_before):
    joint = traced(name)
    for partition in [nx_min_cut.partition] if name in QUICK else PARTITIONS.values():
        forward, backward = as_before(partition, joint)
        before = evaluate(forward, backward, joint.num_outputs)
        _, reordered = partition_copy(partition, joint)
        after = evaluate(forward, reordered, joint.num_outputs)
        assert sorted(names(reordered)) == sorted(names(backward))
        assert after.peak_bytes <= before.peak_bytes
        assert after.fused_peak_bytes <= before.fused_peak_bytes


def test_gradients_differ_in_no_bit(as_before):
    module, x = TwoProducts(), torch.randn(8, 256)
    joint = joint_graph(module, (x,))
    reordered, before = partition_copy(nx_min_cut.partition, joint)[1], as_before(nx_min_cut.partition, joint)[1]
    assert names(reordered) != names(before)

    def gradients(partition):
        compiled = aotkit.compile(module, backend="nop", partition=partition, check=False)
        return torch.autograd.grad(compiled(x), list(compiled.parameters()), torch.ones(4, 256))

    assert all(map(torch.equal, gradients(nx_min_cut.partition), gradients("default")))


def test_the_log_says_from_which_promised_peak_to_which(caplog):
    with caplog.at_level(logging.INFO, logger="aotkit"):
        partition_copy(nx_min_cut.peak(1.0, DEVICE), traced("mlp"))
    promise, reordered = (record.getMessage() for record in caplog.records)
    size = r"([\d.]+ KiB)"
    promised = re.search(f"holds at most {size} of", promise)[1]
    lower, before = re.search(f"It holds at most {size} at once instead of {size} as", reordered).groups()
    assert before == promised
    assert float(lower.split()[0]) < float(before.split()[0])


def test_what_frees_as_much_as_it_leaves_goes_first_then_whose_turn_it_is():
    """Task 0 makes 8 bytes, 1 too, but nobody waits for it; 2 and 3 read those of 0; 4 frees another 8 bytes."""
    tasks = [
        Task(after=(), reads={}, leaves=8, may_be_early=True),
        Task(after=(), reads={}, leaves=8, may_be_early=True),
        Task(after={0}, reads={"a": 8}, leaves=8, may_be_early=True),
        Task(after={0}, reads={"a": 8}, leaves=8, may_be_early=True),
        Task(after=(), reads={"b": 8}, leaves=8, may_be_early=True),
    ]
    assert frees_first(tasks) == [4, 0, 1, 2, 3]
    assert frees_first([*tasks[:4], replace(tasks[4], may_be_early=False)]) == [0, 1, 2, 3, 4]
    assert frees_first([tasks[0], tasks[1], replace(tasks[2], leaves=9), tasks[3]]) == [0, 1, 2, 3]
    assert frees_first([tasks[0], tasks[1], replace(tasks[2], reads={}), tasks[3]]) == [0, 3, 1, 2]


@torch.library.custom_op("aotkit_order::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@twice.register_fake
def _(x):
    return torch.empty_like(x)


FENCES = {
    "draw": lambda state: torch.rand(3),
    "mutation": lambda state: state.add_(1),
    "custom operator": torch.ops.aotkit_order.twice,
}


def order_of(fence):
    """(operators of a backward graph, the same after the pass): `v` is the last to read `h`; a fence comes before."""

    def backward(h, v, g, state):
        return v.t() @ g, fence(state), g @ h.t()

    inputs = torch.randn(64, 256), torch.randn(4, 64), torch.randn(4, 256), torch.randn(3)
    gm = make_fx(backward, tracing_mode="fake")(*inputs)
    before = names(gm)
    everything = set(gm.graph.nodes)
    lower_peak(gm, Sides(inputs=[], outputs=[], forward=set(), backward=everything, needed=[]))
    gm.graph.lint()
    return before, names(gm)


def test_products_are_exchanged_where_nothing_is_between_them():
    before, after = order_of(torch.sin)
    assert before.index("mm") < before.index("mm_1")
    assert after.index("mm_1") < after.index("mm")


@pytest.mark.parametrize("fence", FENCES.values(), ids=FENCES)
def test_nothing_moves_across_draws_mutation_and_effects(fence):
    before, after = order_of(fence)
    assert [n for n in after if "mm" in n] == ["mm", "mm_1"]
    assert sorted(after) == sorted(before)
