"""The gradients of different leaves are different memory, as in eager: scaling one in place leaves the others alone.

But for `nop`, a backend meets the partitioners by turns; `pytest -m sweep` runs all pairs.
"""

import itertools

import pytest
import torch

import aotkit


def one_view(a, b):
    return (a.view(-1) + b).sin()


def bare_tangent(a, b):
    return a.view(-1) + b


def views_of_everything(a, b):
    return a.t().flatten() * 2 + b.view(4, 4).t().reshape(-1) * 2


def same_node(a, b):
    return (a + b.view(4, 4)).sin()


def product(a, b):
    return (a + b.view(4, 4)) @ torch.full((4, 4), 0.5, device=a.device)


@pytest.fixture
def device(device, backend):
    if backend == "nnc" and device.type == "cpu":
        pytest.skip("nnc fuses CPU code only in PyTorch builds with LLVM")
    return device


FUNCTIONS = [one_view, bare_tangent, views_of_everything, same_node, product]


def combinations():
    partitioners = aotkit.list_partitioners()
    for backend in aotkit.list_backends():
        for turn, call in enumerate(itertools.product(FUNCTIONS, ["aot", "dynamo"])):
            for p, partitioner in enumerate(partitioners):
                marks = [] if backend == "nop" or turn % len(partitioners) == p else [pytest.mark.sweep]
                yield pytest.param(*call, backend, partitioner, marks=marks)


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("function", "capture", "backend", "partitioner"), list(combinations()), indirect=["backend", "partitioner"]
)
def test_gradients_of_leaves_are_apart(function, capture, backend, partitioner, device):
    a = torch.randn(4, 4, requires_grad=True, device=device)
    b = torch.randn(16, requires_grad=True, device=device)
    compiled = aotkit.compile(function, backend=backend, partition=partitioner, capture=capture)
    for _ in range(2):  # the second time, `.grad` exists
        compiled(a, b).square().sum().backward()
    want = [2 * g for g in torch.autograd.grad(function(a, b).square().sum(), (a, b))]
    torch.testing.assert_close([a.grad, b.grad], want)
    a.grad.mul_(0)
    torch.testing.assert_close(b.grad, want[1])


def test_three_views_of_one_gradient(backend, device):
    leaves = [torch.randn(2, 3, requires_grad=True, device=device) for _ in range(3)]
    compiled = aotkit.compile(lambda a, b, c: a.flatten() + b.flatten() + c.flatten(), backend=backend)
    compiled(*leaves).square().sum().backward()
    assert len({x.grad.untyped_storage().data_ptr() for x in leaves}) == 3


def test_the_copies_are_in_the_graph(backend, device):
    inputs = [torch.randn(shape, requires_grad=True, device=device) for shape in ((4, 4), (16,))]
    graphs = aotkit.compile(bare_tangent, backend=backend).graphs(*inputs)
    assert sum(n.target is torch.ops.aten.clone.default for n in graphs.backward.graph.nodes) == 1
