"""A graph as text: the same for the same computation, None where it cannot tell."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.fx import symbolic_trace

import aotkit
from aotkit.passes import description, tensor_kind

PROGRAM = """
import torch, aotkit
from aotkit.passes import description
def f(x, y):
    return torch.nn.functional.dropout((x @ y).relu(), 0.5).sum()
x = torch.ones(3, 3, requires_grad=True)
graphs = aotkit.compile(f, backend="nop", check=False).graphs(x, x.clone())
print(description(graphs.forward)); print(description(graphs.backward))
"""


def sine(x):
    return torch.sin(x)


@pytest.mark.sweep
def test_it_is_the_same_in_another_process():
    texts = {subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True).stdout for _ in range(2)}
    (text,) = texts
    assert "aten.mm" in text
    assert "tangents" in text


def traced(fn):
    return description(symbolic_trace(fn))


@pytest.mark.parametrize(
    "other",
    [
        lambda x, y: torch.sin(x) * y + 2,
        lambda x, y: torch.cos(x) * y + 1,
        lambda x, y: y * torch.sin(x) + 1,
        lambda x, y: torch.sin(x) * x + 1,
        lambda x, y: (torch.sin(x) * y).add(1),
        lambda y, x: torch.sin(x) * y + 1,
    ],
)
def test_another_computation_is_another_text(other):
    assert traced(lambda x, y: torch.sin(x) * y + 1) not in (None, traced(other))


def test_a_graph_that_holds_values_has_none():
    held = torch.ones(3)
    assert traced(lambda x: x + held) is None
    assert description(symbolic_trace(nn.Linear(2, 2))) is None


def test_a_graph_that_calls_code_of_others_has_none():
    def mine(x):
        return x + 1

    gm = symbolic_trace(sine)
    (node,) = gm.graph.find_nodes(op="call_function", target=torch.sin)
    node.target = mine
    assert description(gm) is None
    mine.__module__ = "torch"  # as a wrapper of torch's function has it
    assert description(gm) is None


def test_a_graph_that_calls_an_object_has_none():
    gm = symbolic_trace(sine)
    (node,) = gm.graph.find_nodes(op="call_function", target=torch.sin)
    node.target = torch.nn.Tanh()
    assert description(gm) is None


def test_a_graph_with_a_kernel_of_the_users_has_none():
    gm = symbolic_trace(sine)
    (node,) = gm.graph.find_nodes(op="call_function", target=torch.sin)
    node.target = torch.ops.higher_order.triton_kernel_wrapper_functional
    assert description(gm) is None


def test_an_operator_of_others_has_none():
    with torch.library._scoped_library("aotkit_test", "DEF") as library:
        library.define("mine(Tensor x) -> Tensor")
        gm = symbolic_trace(sine)
        (node,) = gm.graph.find_nodes(op="call_function", target=torch.sin)
        node.target = torch.ops.aotkit_test.mine.default
        assert description(gm) is None


def test_graphs_in_a_graph_are_told():
    def inner(scale):
        return symbolic_trace(lambda x: x * scale)

    def outer(scale):
        gm = symbolic_trace(sine)
        gm.add_submodule("inner", inner(scale))
        (node,) = gm.graph.find_nodes(op="call_function", target=torch.sin)
        with gm.graph.inserting_before(node):
            gm.graph.call_module("inner", node.args)
        return description(gm)

    assert outer(2.0) is not None
    assert outer(2.0) == outer(2.0) != outer(3.0)


@pytest.mark.parametrize(
    "other",
    [
        torch.ones(3, 2).t(),
        torch.ones(2, 4),
        torch.ones(2, 3, dtype=torch.float64),
        torch.ones(2, 3, requires_grad=True),
        torch.ones(7)[1:].view(2, 3),
        nn.Parameter(torch.ones(2, 3), requires_grad=False),
        torch.ones(2, 3, device="meta"),
        torch.ones(2, 3).to_sparse(),
    ],
)
def test_kinds_of_tensors_differ(other):
    assert tensor_kind(torch.ones(2, 3)) == tensor_kind(torch.zeros(2, 3)) != tensor_kind(other)


@pytest.mark.sweep
def test_real_graphs_have_one():
    fast = aotkit.compile(nn.TransformerEncoderLayer(8, 2, 16), backend="nop", check=False, capture="dynamo")
    graphs = fast.graphs(torch.ones(2, 3, 8))
    assert description(graphs.forward) is not None
    assert description(graphs.backward) is not None
