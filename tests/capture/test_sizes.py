"""Sizes that turn out to change are left open, where a function is traced directly: few graphs serve an epoch."""

import pytest
import torch
from torch import nn

import aotkit
from aotkit.capture import cache
from aotkit.interfaces import Backend
from tests.agreement import agrees

ROWS = (8, 5, 3, 4, 8, 11, 6, 5, 7)


def entries(compiled, *args):
    return compiled.explain(*args).entries


@agrees(graphs=3, exact=False)
def test_batches_of_many_sizes_take_three_graphs(compile):
    model = compile(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 3)))
    for rows in ROWS:
        x = torch.randn(rows, 6, requires_grad=True)
        y = model(x)
        y.square().mean().backward()
        yield y, x.grad, [p.grad for p in model.parameters()]


@agrees(graphs=3)
def test_several_sizes_that_change_apart(compile):
    """The nodes of a graph, and its edges."""

    def averaged(x, edges):
        return torch.zeros_like(x).index_add(0, edges[1], x[edges[0]]) / x.shape[0]

    f = compile(averaged)
    for nodes, count in ((5, 12), (6, 9), (7, 20), (4, 8), (9, 31)):
        x = torch.randn(nodes, 3, requires_grad=True)
        y = f(x, torch.randint(nodes, (2, count)))
        y.square().sum().backward()
        yield y, x.grad


def test_only_what_has_changed_is_open():
    f = aotkit.compile(lambda x: x.tanh() * 2, backend="nop", capture="aot")
    for rows in ROWS:
        f(torch.randn(rows, 3))
    assert entries(f, torch.randn(100, 3)) == 3
    assert [
        str(n).isdigit()
        for n in f.graphs(torch.randn(100, 3)).forward.graph.find_nodes(op="placeholder")[-1].meta["val"].shape
    ] == [False, True]
    f(torch.randn(4, 7))
    assert entries(f, torch.randn(5, 9)) == 4  # which serves both


def test_two_sizes_stay_fixed():
    f = aotkit.compile(lambda x: (x @ x.T).relu(), backend="nop", capture="aot")
    whole, rest = torch.randn(8, 3), torch.randn(2, 3)
    for x in (whole, whole, rest) * 2:
        f(x)
    assert entries(f, whole) == 2
    assert f.explain(rest).detour is None


def test_a_fixed_size_goes_before_an_open_one():
    f = aotkit.compile(lambda x: x.exp(), backend="nop", capture="aot")
    for rows in ROWS:
        f(torch.randn(rows, 3))
    assert f.explain(torch.randn(8, 3)).detour is None
    assert f.explain(torch.randn(9, 3)).detour == "sizes are left open"


@agrees(graphs=len(set(ROWS)), dynamic=False)
def test_sizes_stay_fixed_if_asked(compile):
    f = compile(lambda x: x.cos())
    for rows in ROWS:
        yield f(torch.randn(rows, 3))


@agrees
def test_what_cannot_have_open_sizes_has_fixed_ones(compile):
    f = compile(lambda x: (x * 2, x.shape))
    for rows in ROWS:
        yield f(torch.randn(rows, 3))


def test_of_what_cannot_be_open_no_more_is_tried():
    asked = []

    def compile_graph(gm, example_inputs):
        asked.append(
            any(isinstance(n, torch.SymInt) for x in example_inputs if isinstance(x, torch.Tensor) for n in x.shape)
        )
        if asked[-1]:
            raise NotImplementedError("no open sizes")
        return gm

    f = aotkit.compile(lambda x: x.sin(), backend=compile_graph, capture="aot", check=False)
    for rows in range(2, 8):
        x = torch.randn(rows)
        assert torch.equal(f(x), x.sin())
    assert asked == [False, False, True, False, False, False, False]


def test_backends_of_fixed_sizes_get_no_others():
    def compile_graph(gm, example_inputs):
        assert all(type(n) is int for x in example_inputs for n in x.shape)
        return gm

    f = aotkit.compile(lambda x: x.sin(), backend=Backend(compile_graph, fixed_sizes=True), capture="aot")
    for rows in range(2, 7):
        f(torch.randn(rows))
    assert entries(f, torch.randn(2)) == 5


@agrees(exact=False)
def test_a_buffer_that_grows(compile):
    """What a module holds may change its size as well."""

    class Memory(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.register_buffer("seen", torch.ones(1, 3))

        def forward(self, x):
            return (x * self.weight) @ self.seen.T

    module = Memory()
    f = compile(module)
    for i in range(6):
        module.seen = torch.cat([module.seen, torch.randn(1, 3)])
        yield f(torch.randn(2, 3)), i


def test_few_graphs_for_a_buffer_that_grows():
    class Memory(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.ones(2, 3))

        def forward(self, x):
            return x @ self.seen.T

    module, x = Memory(), torch.randn(2, 3)
    f = aotkit.compile(module, backend="nop", capture="aot")
    for rows in range(2, 12):
        module.seen = torch.randn(rows, 3)
        assert torch.allclose(f(x), x @ module.seen.T)
    assert entries(f, x) == 3


@agrees(exact=False)
def test_views_and_layouts(compile):
    f = compile(lambda x: (x * 2, x.is_contiguous(), x.flatten(), x.sum(0)))
    for rows in ROWS:
        base = torch.randn(rows + 2, 4, 6)
        for x in (base[1:-1], base[:, 1], base.transpose(1, 2), base[::2].permute(2, 0, 1), base):
            yield f(x)


@pytest.mark.parametrize("most", [2, 3])
def test_beyond_the_limit_the_open_one_stays(monkeypatch, most):
    monkeypatch.setattr(cache, "MOST_ENTRIES", most)
    f = aotkit.compile(lambda x: x.sin(), backend="nop", check=False, capture="aot")
    with pytest.warns(aotkit.RecompilationWarning) if most == 2 else pytest.MonkeyPatch.context():
        for rows in ROWS:
            f(torch.randn(rows))
    assert f.explain(torch.randn(50)).entries == most
    assert f.explain(torch.randn(50)).detour == "sizes are left open"


def test_products_of_open_sizes_are_no_reason_to_compile_again():
    """Of a gradient of a weight, the size of the result is known, and that of the operands is not."""
    f = aotkit.compile(nn.Linear(6, 8), backend="nop", dynamic=True)
    for rows in (3, 40, 2, 7, 300):
        f(torch.randn(rows, 6)).sum().backward()
    assert entries(f, torch.randn(9, 6)) == 1
