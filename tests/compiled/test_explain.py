"""`explain` says how a call runs: which way into the graphs, in which tier, or why eagerly."""

import pytest
import torch

import aotkit
from aotkit.torch_private import native


@pytest.fixture(params=["C++", "Python"])
def tier(request, monkeypatch):
    if request.param == "C++" and native.library_path() is None:
        pytest.skip("no C++ compiler: aotkit runs in Python alone")
    monkeypatch.setenv("AOTKIT_NATIVE", "1" if request.param == "C++" else "0")
    return request.param


def test_plain_functions_go_straight_to_their_graphs(tier):
    f = aotkit.compile(lambda x, y: (x.sin() * y).sum(), backend="nop")
    x = torch.randn(3, requires_grad=True)
    explanation = f.explain(x, torch.ones(3))
    assert (explanation.eager, explanation.detour, explanation.tier) == (None, None, tier)
    assert explanation.entries == 1
    assert explanation.way.endswith(f"straight from the guard, in {tier}")
    in_cpp = not isinstance(f(x, torch.ones(3)).grad_fn, torch.autograd.function.BackwardCFunction)
    assert in_cpp == (tier == "C++")


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda x: x.view(-1), "a view of an input"),
        (lambda x: (x, x + 1), "an output is an input"),
        (lambda x: x.mul_(2), "it mutates an input"),
    ],
)
def test_what_needs_wrappers_says_so(fn, reason):
    explanation = aotkit.compile(fn, backend="nop").explain(torch.randn(2, 2))
    assert reason in explanation.detour
    assert f"through AOTAutograd's wrappers: {explanation.detour}" in str(explanation)


def test_open_sizes_need_wrappers():
    f = aotkit.compile(lambda x: x.sin() * x.shape[0], backend="nop", dynamic=True)
    assert f.explain(torch.randn(3, requires_grad=True)).detour == "sizes are left open"


def test_eager_calls_give_their_reason():
    f = aotkit.compile(lambda x: x.sin(), backend="nop")
    found = []
    torch.func.grad(lambda x: (found.append(f.explain(x)), x.sum())[1])(torch.ones(2))
    assert "functorch transform" in found[0].eager
    assert "runs eagerly: it is called inside a functorch transform" in str(found[0])
    sparse = torch.eye(2).to_sparse()
    assert "sparse" in aotkit.compile(lambda x: x * 2, backend="nop").explain(sparse).eager


def test_failed_compilation_gives_its_error():
    f = aotkit.compile(lambda x: x * int(x.sum()), backend="nop", capture="aot", on_error="eager")
    with pytest.warns(aotkit.EagerFallbackWarning):
        explanation = f.explain(torch.ones(2))
    assert "needs the value of a tensor" in explanation.eager


def test_modules_methods_and_dynamo_explain_too():
    module = aotkit.compile(torch.nn.Linear(2, 2), backend="nop")
    assert module.explain(torch.ones(1, 2)).detour is None

    class Scale:
        @aotkit.compile(backend="nop")
        def apply(self, x):
            return x * 2

    assert Scale().apply.explain(torch.ones(1)).eager is None
    captured = aotkit.compile(lambda x: x * 2, backend="nop", capture="dynamo")
    explanation = captured.explain(torch.ones(1))
    assert (explanation.capture, explanation.pieces, explanation.eager) == ("dynamo", 1, None)
    assert "captured by TorchDynamo, with guards of its own, in one graph: capture='dynamo'" in explanation.way
