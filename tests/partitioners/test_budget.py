"""`nx_min_cut.budget`: a limit for saved bytes that is kept, used, and right in every gradient."""

import itertools
import logging
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import aotkit
from aotkit.inspection import saved_bytes
from aotkit.partitioners import default, nx_min_cut
from aotkit.partitioners.rematerialization.devices import Device, measured

DEVICE = Device(bandwidth=1e12, flops=1e14)
# As fast as large models are to a GPU: products of small matrices are else bound by the launch of their kernels.
WITHOUT_LAUNCH = Device(bandwidth=1e12, flops=1e14, launch=0.0)


FRACTIONS = [0.6, *(pytest.param(f, marks=pytest.mark.sweep) for f in (1.0, 0.3))]


@pytest.mark.thinned
@pytest.mark.parametrize("fraction", FRACTIONS)
def test_computes_what_eager_computes(split, workload, fraction):
    assert_computes_within(fraction, split, workload.function, *workload.inputs())


@pytest.mark.sweep
@pytest.mark.parametrize("fraction", [0.6, 1.0, 0.3])
def test_computes_what_eager_computes_with_open_sizes(split, workload, fraction):
    assert_computes_within(fraction, split, workload.function, *workload.inputs(), dynamic=True)


@pytest.mark.parametrize("fraction", FRACTIONS)
def test_open_sizes(split, fraction):
    def function(x, w):
        return F.layer_norm(F.dropout((x @ w).softmax(-1)) @ w, (8,)).sin()

    assert_computes_within(fraction, split, function, normal(4, 8), normal(8, 8), dynamic=True)


def normal(*shape):
    return torch.randn(*shape, requires_grad=True)


def assert_computes_within(fraction, split, function, *inputs, dynamic=False):
    """Or the error says what is the least possible budget, and that one does."""

    def run(limit):
        return split(nx_min_cut.budget(limit, DEVICE), function, *inputs, dynamic=dynamic)

    if (least := least_budget(run, fraction)) is not None:
        assert run(least).saved_bytes == least
    else:
        assert not run(fraction).draws_in_both()


def least_budget(run, limit):
    """What the error says if a budget is impossible."""
    try:
        run(limit)
    except aotkit.CompileError as e:
        return int(re.search(r"smallest possible budget is (\d+) bytes", str(e))[1])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(64, 256), nn.Linear(256, 64), nn.LayerNorm(64)

    def forward(self, x):
        return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), 0.1, self.training)


class Network(nn.Module):
    def __init__(self, blocks=8):
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(blocks)))
        self.convolution, self.statistics = nn.Conv1d(4, 4, 3, padding=1), nn.BatchNorm1d(4)

    def forward(self, x):
        y = self.blocks(x)
        return F.relu(self.statistics(self.convolution(y))).mean()


def gradients(model, x):
    torch.manual_seed(0)
    return torch.autograd.grad(model(x), list(model.parameters()))


def compiled(partition, blocks=8, **options):
    torch.manual_seed(0)
    return aotkit.compile(Network(blocks), backend="nop", partition=partition, **options)


X = torch.randn(8, 4, 64)
LARGEST_VALUE = 8 * 4 * 256 * 4  # bytes


def saved(model):
    return saved_bytes(model.graphs(X))


@pytest.fixture(scope="module")
def fastest():
    return saved(compiled(nx_min_cut.budget(1.0, WITHOUT_LAUNCH), check=False))


BUDGETS = list(itertools.product((1.0, 0.8, 0.5, 0.3, 0.2), ("shared", "torch")))
QUICK = [(0.2, "shared")]


@pytest.mark.parametrize(
    ("fraction", "random"), [*QUICK, *(pytest.param(*b, marks=pytest.mark.sweep) for b in BUDGETS if b not in QUICK)]
)
def test_gradients_are_those_of_the_default_partition_bit_for_bit(fraction, random):
    options = {"blocks": 3, "random": random, "check": False}
    reference = gradients(compiled("default", **options), X)
    within = nx_min_cut.budget(fraction, WITHOUT_LAUNCH)
    found = gradients(compiled(within, **options), X)
    assert all(map(torch.equal, found, reference))


@pytest.mark.sweep
@pytest.mark.parametrize("fraction", [0.3, *(pytest.param(f, marks=pytest.mark.sweep) for f in (0.9, 0.7, 0.5, 0.2))])
def test_the_budget_is_used(fastest, fraction):
    """But for what is less than one value."""
    found = saved(compiled(nx_min_cut.budget(int(fraction * fastest), WITHOUT_LAUNCH), check=False))
    assert fraction * fastest - LARGEST_VALUE < found <= fraction * fastest


@pytest.mark.parametrize("backend", ["nop", pytest.param("inductor", marks=pytest.mark.sweep)])
def test_the_check_passes(backend):
    assert aotkit.check(Network(blocks=2), X, backend=backend, partition=nx_min_cut.budget(0.5, WITHOUT_LAUNCH)).passed


def test_an_impossible_budget_names_the_smallest_one(split):
    def drawing(x, w):
        return torch.rand(64, 64) * (x @ w).sin()

    x, w = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)

    def run(limit):
        return split(nx_min_cut.budget(limit, DEVICE), drawing, x, w)

    assert least_budget(run, 100) == run(64 * 64 * 4).saved_bytes == 64 * 64 * 4


def test_what_was_saved_is_told(split, caplog):
    x, w = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)
    with caplog.at_level(logging.INFO, "aotkit"):
        split(nx_min_cut.budget("20KiB", DEVICE), lambda x, w: (x @ w).sin() @ w, x, w)
    assert "saves 16.0 KiB of 20.0 KiB" in caplog.text


def test_a_value_that_leaves_a_budget_unused_is_named(split, caplog):
    x, w = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)

    def message(limit):
        caplog.clear()
        with caplog.at_level(logging.INFO, "aotkit"):
            split(nx_min_cut.budget(limit, DEVICE), lambda x, w: ((x @ w).tanh() @ w).tanh() @ w @ w, x, w)
        return caplog.text

    told = message("40KiB")
    assert "saves 32.0 KiB of 40.0 KiB" in told
    assert re.search(r"The smallest value that is worth saving besides, mm\w*, has 16.0 KiB, more than the rest", told)
    assert "worth saving" not in message("32KiB")
    assert "worth saving" not in message(1.0)


def test_names_in_messages():
    fn = aotkit.compile(lambda x: x.sin(), backend="nop", partition=nx_min_cut.budget("2GiB"))
    x = torch.randn(4, requires_grad=True)
    assert fn.graphs(x).partition == "nx_min_cut.budget('2GiB')"


@pytest.mark.parametrize("limit", ["2 gigabytes", "GiB", "", 1.5, -1, -0.5, True, None, float("nan")])
def test_what_is_no_budget(limit):
    with pytest.raises(ValueError, match=r"is no budget\. Use bytes"):
        nx_min_cut.budget(limit)


def test_the_device_is_measured_once():
    found = measured(torch.device("cpu"), torch.float32)
    assert 1e8 < found.bandwidth < 1e14
    assert 1e8 < found.flops < 1e16
    assert measured(torch.device("cpu"), torch.float32) is found


def test_expensive_operators_run_again_only_below_what_cheap_ones_can_save(split):
    x, w = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)

    def chain(x, w):
        for _ in range(4):
            x = (x @ w).sin().exp()
        return x

    def products(limit):
        graphs = split(nx_min_cut.budget(limit, WITHOUT_LAUNCH), chain, x, w)
        return sum(n.target is torch.ops.aten.mm.default for n in graphs.backward.graph.nodes)

    everything = split(default.partition, chain, x, w).saved_bytes
    assert products(everything) == products(4 * 64 * 64 * 4) == 8
    assert products(2 * 64 * 64 * 4) > 8
