"""Inputs that change between the forward and the backward pass: gradients are eager's, or refused; never others."""

import pytest
import torch
from torch.nn import functional as F

import aotkit
from aotkit.registry import get_backend

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# What eager keeps of `q` for the gradient of `x` are other values than `q` itself.
KEPT_APART = {
    "clone": lambda x, q: x @ q.clone(),
    "copy by to": lambda x, q: x @ q.to(torch.float32, copy=True),
    "copy of a view by to": lambda x, q: x @ q.t().to(torch.float32, copy=True),
    "contiguous": lambda x, q: x @ q.t().contiguous(),
    "normalize": lambda x, q: x @ F.normalize(q),
    "sum": lambda x, q: x @ (q + 0),
    "two values": lambda x, q: (x[:8] * q.sin()) * q.cos(),
    "indexed": lambda x, q: x @ q[:, [3, 1, 2, 0, 7, 6, 5, 4]],
    "copy and more": lambda x, q: x * q.clone()[0] * q.sin()[1],
    # These are no operations to Inductor.
    "repeated": lambda x, q: x @ q.repeat(1, 1),
    "view of repeated": lambda x, q: x @ q.repeat(1, 1).t(),
    "parts of repeated": lambda x, q: torch.cat([x @ part.t() for part in q.repeat(1, 1).chunk(2)], 1),
    "padded": lambda x, q: x @ F.pad(q, (0, 0)),
    "plus zeros": lambda x, q: x @ (q + torch.zeros_like(q)),
}
# Eager keeps `q`, or a view of it.
KEPT = {
    "itself": lambda x, q: x @ q,
    "transposed": lambda x, q: x @ q.t(),
    "viewed": lambda x, q: x @ q.view(-1)[:64].view(8, 8),
    "open sizes": lambda x, q: x @ q.view(-1)[: x.shape[1] * x.shape[1]].view(x.shape[1], x.shape[1]),
    "expanded": lambda x, q: (x * q[:1].expand(x.shape[0], -1)).exp(),
    "parts": lambda x, q: torch.cat([x @ part.t() for part in q.chunk(2)], 1),
    "several views": lambda x, q: (x @ q.t()) * q.view(-1)[: x.shape[1]] * q[0] * q.t()[1],
    "detached": lambda x, q: x * q.detach()[0],
}


def arguments():
    return torch.randn(12, 8, device=DEVICE, requires_grad=True), torch.randn(8, 8, device=DEVICE)


def gradient(f, x, q):
    return torch.autograd.grad(f(x, q).square().sum(), x)[0]


def compiled_by(f, capture, dynamic, backend, partitioner):
    if dynamic and get_backend(backend).fixed_sizes:
        pytest.skip("its graphs have fixed sizes")
    return aotkit.compile(f, backend=backend, partition=partitioner, dynamic=dynamic, capture=capture)


@pytest.mark.parametrize(("capture", "dynamic"), [("auto", False), ("dynamo", True)])
@pytest.mark.parametrize("name", KEPT_APART)
def test_gradients_are_those_of_the_value_at_the_call(name, capture, dynamic, backend, partitioner):
    f = KEPT_APART[name]
    compiled = compiled_by(f, capture, dynamic, backend, partitioner)
    x, q = arguments()
    want = gradient(f, x, q)
    y = compiled(x, q)
    q.zero_()
    torch.testing.assert_close(torch.autograd.grad(y.square().sum(), x)[0], want)


@pytest.mark.parametrize(
    "f",
    [
        lambda x, q: x @ q.clone(),
        lambda x, q: x @ q.to(torch.float32, copy=True),
        lambda x, q: x @ q.t().clone(),
        lambda x, q: x * q.clone().view(-1)[:8],
    ],
)
def test_copies_of_what_needs_gradients_are_apart_from_it(f, backend, partitioner):
    """As of a parameter that is updated before the backward pass."""
    x, q = arguments()
    q.requires_grad_()
    want = gradient(f, x, q)
    y = aotkit.compile(f, backend=backend, partition=partitioner)(x, q)
    with torch.no_grad():
        q.zero_()
    torch.testing.assert_close(torch.autograd.grad(y.square().sum(), x)[0], want)


@pytest.mark.parametrize(("capture", "dynamic"), [("auto", False), ("dynamo", True)])
@pytest.mark.parametrize("name", KEPT)
def test_what_eager_refuses_is_refused_or_right(name, capture, dynamic, backend, partitioner):
    f = KEPT[name]
    compiled = compiled_by(f, capture, dynamic, backend, partitioner)
    x, q = arguments()
    want = gradient(f, x, q)
    torch.testing.assert_close(gradient(compiled, x, q), want)
    y = compiled(x, q)
    q.zero_()
    try:
        got = torch.autograd.grad(y.square().sum(), x)[0]
    except RuntimeError as e:
        if "inplace operation" not in str(e):
            raise
    else:
        torch.testing.assert_close(got, want)


def test_an_input_of_which_several_views_are_kept_is_saved_once(backend, partitioner):
    compiled = aotkit.compile(KEPT["several views"], backend=backend, partition=partitioner)
    forward = compiled.graphs(*arguments()).forward
    results = forward.graph.output_node().args[0]
    inputs = [node for node in results[1:] if node.op == "placeholder"]
    assert len(inputs) == len(set(inputs))


def test_no_copy_is_made_of_what_is_not_saved(partitioner):
    """What is saved is smaller than the input, or the input is a parameter, which keeps its value."""
    x, q = arguments()
    for f, given in (
        (lambda x, q: x * q.sum(0), q),
        (lambda x, q: x @ F.normalize(q), torch.nn.Parameter(q, requires_grad=False)),
    ):
        graphs = aotkit.compile(f, backend="nop", partition=partitioner).graphs(x, given)
        for gm in (graphs.joint, graphs.forward, graphs.backward):
            assert not gm.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)


@pytest.mark.parametrize("capture", ["auto", "dynamo"])
def test_a_frozen_parameter_costs_nothing(capture):
    x, q = arguments()
    frozen = torch.nn.Parameter(q, requires_grad=False)
    compiled = aotkit.compile(lambda x, q: x @ F.normalize(q), backend="nop", partition="nx_min_cut", capture=capture)
    forward = compiled.graphs(x, frozen).forward
    assert q.shape not in [
        n.meta["val"].shape for n in forward.graph.output_node().args[0][1:] if n.op != "placeholder"
    ]


def test_an_input_with_gaps_between_its_elements(backend, partitioner):
    """A copy of it has another layout."""
    x, _ = arguments()
    f = lambda x, q: x @ q.sin()  # noqa: E731
    compiled = aotkit.compile(f, backend=backend, partition=partitioner)
    wide = torch.randn(8, 16, device=DEVICE)
    want = gradient(f, x, wide[:, ::2])
    y = compiled(x, wide[:, ::2])
    wide.zero_()
    torch.testing.assert_close(torch.autograd.grad(y.square().sum(), x)[0], want)
