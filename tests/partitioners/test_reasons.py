"""`Graphs` say why each value is saved, and what each recomputed one costs."""

import functools
import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import aotkit
from aotkit.inspection import recomputation_costs, render_html, render_text, saved_values
from aotkit.partitioners import nx_min_cut
from aotkit.partitioners.rematerialization.devices import Device

DEVICE = Device(bandwidth=1e9, flops=1e12, launch=0.0)
ROWS, WIDTH, HIDDEN = 32, 64, 128


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        return self.down(F.dropout(F.gelu(self.up(x)), 0.1))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48, bias=False), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return x + self.out((q @ k.transpose(-1, -2)).softmax(-1) @ v)


class ResidualBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x):
        return x + F.max_pool2d(F.relu(self.norm(self.convolution(x))), 3, 1, 1).sin()


def graphs_of(function, *inputs, partition=nx_min_cut.partition, **options):
    return aotkit.compile(function, backend="nop", partition=partition, check=False, **options).graphs(*inputs)


def reasons(graphs):
    return {value.name: value.reason for value in saved_values(graphs) if value.kind == "activation"}


def test_products_and_draws_of_an_mlp():
    graphs = graphs_of(MLP(), torch.randn(ROWS, WIDTH), random="torch")
    said = {value.operator: value.reason for value in saved_values(graphs) if value.kind == "activation"}
    product = f"matrix product, {2 * ROWS * WIDTH * HIDDEN / 1000:.1f} KFLOP"
    assert said == {"addmm": f"expensive: {product}", "native_dropout": "random"}


def test_what_is_saved_in_place_of_a_product_says_so():
    """Of the transposed keys a copy is saved: the product itself would take three times the memory."""
    found = reasons(graphs_of(Attention(), torch.randn(2, 8, 16)))
    softmax = 2 * 8 * 8 * 4
    product = 2 * 2 * 8 * 8 * 16
    assert found["_softmax"] == (
        f"cheaper than recomputing it: {softmax} B against matrix product, {product / 1000:.1f} KFLOP"
    )
    assert all("matrix product" in reason for reason in found.values())


def test_batch_norm_and_pooling_of_a_residual_block():
    graphs = graphs_of(ResidualBlock(), torch.randn(2, 4, 8, 8))
    said = {value.operator: value.reason for value in saved_values(graphs) if value.kind == "activation"}
    convolution = 2 * (2 * 8 * 8) * 4 * 4 * 3 * 3
    statistics, changed = "_native_batch_norm_legit_functional", "reads an input changed in place"
    assert said["convolution"] == f"expensive: convolution, {convolution / 1000:.1f} KFLOP"
    assert said[statistics] == changed
    assert said["relu"] == f"computed from {statistics}: {changed}"
    assert said["max_pool2d_with_indices"] == "expensive: max_pool2d_with_indices"


def test_what_a_budget_has_room_for():
    """And what recomputing takes on the device, in the unit of its estimate."""
    x, w = torch.randn(ROWS, ROWS, requires_grad=True), torch.randn(ROWS, ROWS, requires_grad=True)

    def chain(x, w):
        for _ in range(4):
            x = (x @ w).sin().exp()
        return x

    size = 4 * ROWS * ROWS
    graphs = graphs_of(chain, x, w, partition=nx_min_cut.budget(2 * size, DEVICE))
    found = reasons(graphs)
    assert len(found) == 2
    said = re.compile(r"the budget has room for it: \S+ us to recompute, .*matrix product.*")
    assert all(map(said.fullmatch, found.values()))
    products = {n: c for n, c in recomputation_costs(graphs).items() if n.target is torch.ops.aten.mm.default}
    assert products
    for cost in products.values():
        assert (cost.nbytes, cost.flops) == (3 * size, 2 * ROWS**3)
        assert cost.seconds == pytest.approx(3 * size / DEVICE.bandwidth, rel=1e-6)
    assert "~ recomputed: 12.0 KiB moved, 65.5 KFLOP, about 12.3 us" in render_text(graphs, 400)


def test_what_is_tagged_to_be_saved():
    def policy(context, operator, *args, **kwargs):
        return (
            CheckpointPolicy.MUST_SAVE if operator is torch.ops.aten.sin.default else CheckpointPolicy.PREFER_RECOMPUTE
        )

    def function(x, w):
        contexts = functools.partial(create_selective_checkpoint_contexts, policy)
        return checkpoint(lambda x: ((x @ w).sin() @ w).cos(), x, use_reentrant=False, context_fn=contexts).sin()

    x, w = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    assert reasons(graphs_of(function, x, w, capture="dynamo")) == {"sin": "tagged by torch.utils.checkpoint"}


@pytest.mark.parametrize("backend", ["nop", "inductor"])
def test_inputs_that_the_function_changes(backend):
    """The copy that the function makes is saved: Inductor's passes do not take it away."""

    def changing(x, state):
        y = x * state.clone()
        state.add_(1)
        return y

    uncompiled = replace(aotkit.get_backend(backend), fw_compiler=lambda gm, inputs: gm)
    inputs = torch.randn(8, requires_grad=True), torch.randn(8)
    graphs = aotkit.extract(changing, *inputs, backend=uncompiled, partition="nx_min_cut")
    assert list(reasons(graphs).values()) == ["reads an input changed in place"]


def test_what_is_alive_anyway_has_no_reason():
    def function(x, w):
        return (x @ w).exp()

    x, w = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    graphs = graphs_of(function, x, w)
    assert {(value.kind, value.reason) for value in saved_values(graphs)} == {("input", ""), ("output", "")}
    assert "input w" in str(graphs)


@pytest.mark.parametrize("random", ["torch", "shared"])
def test_a_partitioner_without_reasons_shows_who_reads_a_value(random):
    graphs = graphs_of(Attention(), torch.randn(2, 8, 16), partition="default", random=random)
    nodes = {node.name: node for node in graphs.backward.graph.nodes}
    for name, reason in reasons(graphs).items():
        readers = re.fullmatch(r"read by (\w+)(?:, (\w+)(?: and \d+ more)?)?", reason)
        assert readers, reason
        assert all(nodes[reader].op == "call_function" for reader in readers.groups() if reader), name


def test_torchs_min_cut_says_what_it_must_not_repeat():
    found = reasons(graphs_of(MLP(), torch.randn(ROWS, WIDTH), partition="min_cut", random="torch"))
    assert "random" in found.values()


HOSTILE = "<b>because\x1b[2J| I like it</b>"


def test_a_partitioner_of_ones_own_leaves_its_reasons():
    def partition(joint, joint_inputs, **keywords):
        forward, backward = aotkit.get_partitioner("default")(joint, joint_inputs, **keywords)
        for node in forward.graph.nodes:
            node.meta["saved_because"] = HOSTILE
        return forward, backward

    graphs = graphs_of(lambda x: x.sin().exp().sin(), torch.randn(4, requires_grad=True), partition=partition)
    assert len(set(reasons(graphs).values())) == 1
    assert "because" in str(graphs)
    assert "because" in graphs._repr_markdown_()
    for text in (str(graphs), graphs._repr_markdown_(), render_html(graphs)):
        assert "\x1b" not in text
    assert "<b>because" not in graphs._repr_markdown_() + render_html(graphs)


@pytest.mark.sweep
@pytest.mark.parametrize("partition", [nx_min_cut.partition, nx_min_cut.budget(0.5, DEVICE)], ids=["cut", "budget"])
def test_every_value_has_a_reason_with_open_sizes_too(partition):
    graphs = graphs_of(Attention(), torch.randn(2, 8, 16), partition=partition, dynamic=True)
    found = reasons(graphs)
    assert found
    assert not [name for name, reason in found.items() if not reason or reason.startswith("read by")]
    assert all(cost.nbytes for cost in recomputation_costs(graphs).values())
