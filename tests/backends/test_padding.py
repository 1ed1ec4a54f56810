"""Inductor pads matrices for matrix products: what is padded twice is stored once."""

import dataclasses

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import pad
from torch.utils._pytree import tree_map

import aotkit
from aotkit.backends.inductor_graphs.padding import share_padded

aten = torch.ops.aten
# As Inductor leaves graphs: without views that are permutations by another name.
DECOMPOSITIONS = {aten.t.default: lambda x: aten.permute.default(x, [1, 0])}


def sharing(function, x):
    """The function's graph after `share_padded`; it still computes the same."""
    gm = make_fx(function, decomposition_table=DECOMPOSITIONS, tracing_mode="fake")(x)
    share_padded(gm)
    gm.recompile()
    torch.testing.assert_close(tuple(gm(x)), function(x), rtol=0, atol=0)
    return gm


def padded(gm):
    return gm.graph.find_nodes(op="call_function", target=aten.constant_pad_nd.default)


def a_value_and_its_transpose(x):
    y = x.exp()
    return pad(y.t(), (0, 0, 0, 3)) @ x, pad(y, (0, 3)) @ x.new_ones(8, 2)


def three_dimensions(x):
    y = x.reshape(4, 5, 2)
    first, second = pad(y.permute(1, 0, 2), (0, 0, 1, 2)), pad(y, (0, 0, 0, 0, 1, 2))
    third = pad(y.permute(-1, 0, 1), (0, 0, 1, 2))
    return first.bmm(x.new_ones(5, 2, 3)), second.bmm(x.new_ones(7, 2, 3)), third.bmm(x.new_ones(2, 5, 3))


@pytest.mark.parametrize("function", [a_value_and_its_transpose, three_dimensions])
def test_what_is_padded_alike_is_padded_once(function):
    x = torch.randn(8, 5)
    gm = sharing(function, x)
    assert len(padded(gm)) == 1
    expected = tree_map(lambda t: t.shape, list(function(x)))
    assert [node.meta["val"].shape for node in gm.graph.output_node().args[0]] == expected


@pytest.mark.parametrize(
    "other",
    [
        lambda x: pad(x.t(), (0, 3)),
        lambda x: pad(x.t(), (0, 0, 3, 0)),
        lambda x: pad(x.t(), (0, 0, 0, 3), value=1.0),
        lambda x: pad((2 * x).t(), (0, 0, 0, 3)),
    ],
    ids=["other dimension", "other end", "other filling", "other value"],
)
def test_what_is_padded_otherwise_stays_apart(other):
    def function(x):
        padded = other(x)
        return pad(x, (0, 3)) @ x.new_ones(8, 2), padded @ x.new_ones(padded.shape[1], 2)

    assert len(padded(sharing(function, torch.randn(8, 5)))) == 2


@pytest.mark.sweep
def test_what_is_returned_has_its_own_memory():
    def function(x):
        return pad(x, (0, 3)), pad(x.t(), (0, 0, 0, 3)), pad(2 * x, (0, 3)), pad((2 * x).t(), (0, 0, 0, 3)).unsqueeze(0)

    assert aotkit.check(function, torch.randn(8, 5, requires_grad=True), backend="inductor").passed


def test_inductor_runs_it():
    def function(x, w, v):
        y = torch.exp(x @ w)
        return (pad(y.t(), (0, 0, 0, 3)) @ x).sum() + (pad(y, (0, 3)) @ v).sum()

    inputs = [torch.randn(s, requires_grad=True) for s in ((8, 6), (6, 5), (8, 4))]
    compiled = aotkit.compile(function, backend="inductor", partition="nx_min_cut")
    torch.autograd.grad(compiled(*inputs), inputs)  # checked against eager
    graphs = compiled.graphs(*inputs)
    assert len(padded(graphs.forward)) == 1


def pad_products(joint, joint_inputs):
    """As Inductor's pass on a GPU leaves them: what it adds says of which pass it is, as the product does."""

    def added(node, target, *args):
        with joint.graph.inserting_before(node):
            result = joint.graph.call_function(target, args)
        values = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in args]
        result.meta = {**node.meta, "val": target(*values)}
        return result

    for node in joint.graph.find_nodes(op="call_function", target=aten.mm.default):
        rows, columns = node.meta["val"].shape
        operands = [added(node, aten.constant_pad_nd.default, x, [0, 3, 0, 3]) for x in node.args]
        some = added(node, aten.slice.Tensor, added(node, aten.mm.default, *operands), 0, 0, rows)
        node.replace_all_uses_with(added(node, aten.slice.Tensor, some, 1, 0, columns))
        joint.graph.erase_node(node)
    share_padded(joint)
    joint.recompile()


def test_what_both_passes_pad_is_cut_between_them(partitioner):
    def function(x, w):
        return ((x @ w).exp() @ w.t()).sin()

    nop = aotkit.get_backend("nop")
    backend = dataclasses.replace(nop, joint_pass=pad_products, decompositions=DECOMPOSITIONS)
    x, w = (torch.randn(shape, requires_grad=True) for shape in ((8, 6), (6, 5)))
    torch.autograd.grad(aotkit.compile(function, backend=backend, partition=partitioner)(x, w).sum(), [x, w])
