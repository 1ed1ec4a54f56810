"""Inductor: the numbers of eager, random ones included, fused kernels, and code that is found again on disk."""

import json
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses import FakeTensorMode

import aotkit
from aotkit.backends.inductor_graphs.compiling import hands_memory_on
from aotkit.inspection import saved_values
from aotkit.partitioners import nx_min_cut
from tests.view.models import Attention


@pytest.mark.parametrize("partition", aotkit.list_partitioners())
def test_dropout_draws_the_mask_that_eager_draws(partition, device):
    def function(x):
        return F.dropout(x.sin(), 0.5), F.dropout(x.cos(), 0.2)

    x = torch.randn(64, 8, requires_grad=True, device=device)
    compiled = aotkit.compile(function, backend="inductor", partition=partition, random="torch")
    compiled(x)  # the check of the first call draws too
    for seed in (1, 2):
        runs = []
        for call in (function, compiled):
            torch.manual_seed(seed)
            first, second = call(x)
            runs.append((first, second, *torch.autograd.grad(first.sum() + second.square().sum(), x), torch.rand(2)))
        for got, want in zip(runs[1], runs[0], strict=True):
            torch.testing.assert_close(got, want)
        assert torch.equal(runs[0][0] == 0, runs[1][0] == 0)


def test_dropout_of_two_calls_differs():
    compiled = aotkit.compile(lambda x: F.dropout(x, 0.5), backend="inductor")
    x = torch.ones(256, requires_grad=True)
    assert not torch.equal(compiled(x), compiled(x))


def test_a_generator_of_the_user_is_drawn_from_where_inductor_has_kept_an_equal_graph():
    def draw(x, generator):
        return x + torch.rand(x.shape, generator=generator)

    for _ in range(2):
        generator = torch.Generator().manual_seed(3)
        compiled = aotkit.compile(draw, backend="inductor", check=False)
        drawn = [compiled(torch.zeros(8), generator) for _ in range(2)]
        generator.manual_seed(3)
        assert all(torch.equal(got, draw(torch.zeros(8), generator)) for got in drawn)


@pytest.mark.skipif(torch.__version__ < "2.13", reason="torch 2.11 leaves them out all the same, and the check refuses")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("between", [torch.clone, torch.relu, lambda x: torch.cat((x, x)), lambda x: x.chunk(2)[1]])
def test_conversions_to_a_narrower_type_and_back_round(between, dtype, device):
    """Inductor leaves them out by default, and then is as far off as the narrow type is coarse."""

    def function(x):
        return between(x.to(dtype)).float() + 1

    x = torch.randn(50, 20, device=device)
    torch.testing.assert_close(aotkit.compile(function, backend="inductor")(x), function(x))


@pytest.mark.parametrize("causal", [True, False])
def test_scaled_dot_product_attention(causal, device):
    def attention(x, w):
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in (x @ w).chunk(3, dim=-1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2)

    x = torch.randn(2, 6, 16, requires_grad=True, device=device)
    w = torch.randn(16, 48, requires_grad=True, device=device)
    assert aotkit.check(attention, x, w, backend="inductor").passed


def test_attention_spelled_out_is_recognised_before_the_cut():
    """Inductor's pattern for attention needs the joint graph; seen by the operator that replaces softmax."""

    def attention(q, k, v):
        return (q @ k.transpose(-2, -1)).div(8**0.5).softmax(-1) @ v

    inputs = [torch.randn(2, 2, 6, 8, requires_grad=True) for _ in range(3)]
    graphs = aotkit.compile(attention, backend="inductor").graphs(*inputs)
    operators = {str(n.target) for n in graphs.forward.graph.nodes if n.op == "call_function"}
    assert any("scaled_dot_product" in name for name in operators), operators


def test_parts_of_one_projection_are_one_memory():
    """Also where Inductor has put attention in the place of what was spelled out."""
    model, x = Attention(32, 2), torch.randn(2, 16, 32, requires_grad=True)
    graphs = aotkit.extract(lambda x: model(x).square().mean(), x, backend="inductor")
    (attention,) = [n for n in graphs.forward.graph.nodes if n.name.startswith("_scaled_dot_product")]
    saved = {value.name: value for value in saved_values(graphs)}
    queries, keys, values = (saved[node.name] for node in attention.all_input_nodes)
    assert queries.storage == keys.storage == values.storage
    assert queries.nbytes == keys.nbytes == values.nbytes == 3 * x.nbytes


def sums(a, b, c, d):
    return (a + b.view(4, 8) + c + d).cos()


def test_a_gradient_of_several_leaves_is_stored_several_times(device):
    shapes = [(4, 8), (32,), (4, 8), (4, 8)]
    inputs = [torch.randn(shape, requires_grad=True, device=device) for shape in shapes]
    result, tangent = aotkit.compile(sums, backend="inductor")(*inputs), torch.ones(4, 8, device=device)
    with torch.profiler.profile(acc_events=True) as profile:
        result.backward(tangent)
    assert not {"aten::clone", "aten::copy_"} & {event.name for event in profile.events()}
    gradients = [x.grad for x in inputs]
    torch.testing.assert_close(gradients, list(torch.autograd.grad(sums(*inputs), inputs, tangent)))
    assert len({g.untyped_storage().data_ptr() for g in gradients}) == 4


def test_the_gradient_of_activations_is_stored_once(device):
    leaf = torch.randn(4, 8, requires_grad=True, device=device)
    activations = [leaf * 2, leaf.view(32) * 2, leaf * 2, leaf * 2]
    result = aotkit.compile(sums, backend="inductor")(*activations)
    gradients = torch.autograd.grad(result.sum(), activations)
    assert gradients[0].data_ptr() == gradients[2].data_ptr() == gradients[3].data_ptr()


# Products alone, so that the C++ compiler has nothing to do: it would take half a minute.
PROGRAM = """
import json, torch, aotkit
from torch._dynamo.utils import counters

def function(x, w):
    return x @ w

torch.manual_seed(0)
x, w = torch.randn(8, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
out = aotkit.compile(function, backend="inductor", check=False)(x, w)
out.sum().backward()
print(json.dumps({name: counters["inductor"][f"fxgraph_cache_{name}"] for name in ("hit", "miss", "bypass")}))
"""


@pytest.mark.sweep
def test_a_second_process_finds_both_graphs_on_disk(tmp_path):
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    counts = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, check=True, text=True, stdout=subprocess.PIPE
        )
        counts.append(json.loads(done.stdout.splitlines()[-1]))
    assert counts == [{"hit": 0, "miss": 2, "bypass": 0}, {"hit": 2, "miss": 0, "bypass": 0}]


# memory_efficient_fusion, which chooses Inductor on a CPU.


def residual(x, bias):
    return F.gelu(x + bias).sin() * x


def test_memory_efficient_fusion_of_a_function():
    x, bias = torch.randn(16, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    fused = aotkit.memory_efficient_fusion(residual)
    want = torch.autograd.grad(residual(x, bias).sum(), (x, bias))
    torch.testing.assert_close(torch.autograd.grad(fused(x, bias).sum(), (x, bias)), want)
    graphs = fused.graphs(x, bias)
    assert graphs.partition == "min_cut"
    assert graphs.backend in ("inductor", "nnc", "nvfuser")
    assert aotkit.inspection.saved_bytes(graphs) == 0  # recomputed from the inputs


def test_memory_efficient_fusion_of_a_module():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.bias = nn.Linear(8, 8), nn.Parameter(torch.randn(8))

        def forward(self, x):
            return residual(self.linear(x), self.bias)

    block, x = Block(), torch.randn(16, 8)
    fused = aotkit.memory_efficient_fusion(block)
    assert isinstance(fused, Block)
    assert list(fused.state_dict()) == list(block.state_dict())
    want = torch.autograd.grad(block(x).sum(), list(block.parameters()))
    torch.testing.assert_close(torch.autograd.grad(fused(x).sum(), list(fused.parameters())), want)


def test_memory_efficient_fusion_takes_the_options_of_compile():
    fused = aotkit.memory_efficient_fusion(residual, partition="nx_min_cut", check=False)
    x, bias = torch.randn(4, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    assert fused.graphs(x, bias).partition == "nx_min_cut"


@pytest.mark.parametrize(
    ("partition", "device", "hands_on"),
    [
        ("nx_min_cut", "cuda", True),
        (nx_min_cut.peak(1.0), "cuda", False),
        (nx_min_cut.budget(1.0), "cuda", False),
        (nx_min_cut.peak(1.0), "cpu", True),
    ],
    ids=["no limit", "peak", "budget", "cpu"],
)
def test_memory_is_handed_on_unless_there_is_a_limit_on_a_gpu(partition, device, hands_on):
    with FakeTensorMode():
        inputs = [3, torch.empty(4, device=device)]
    asked = []

    def compile_graph(gm, example_inputs):
        asked.append(hands_memory_on(gm, inputs))
        return gm

    def mlp(x, w, v):
        return ((x @ w).sin().cos() @ v).exp().sum()

    args = [torch.randn(8, 8, requires_grad=True) for _ in range(3)]
    aotkit.compile(mlp, backend=compile_graph, partition=partition)(*args).backward()
    assert asked == [hands_on] * 2
