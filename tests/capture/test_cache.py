"""Compilations of one function side by side: found again in any order, and limited in number."""

import itertools
import warnings

import torch

import aotkit
from aotkit.capture import cache


def test_sixteen_signatures_compile_once_each():
    f = aotkit.compile(lambda x: x * 2 + 1, backend="nop", check=False, dynamic=False)
    inputs = [torch.randn(1 + i, 3, requires_grad=i % 2 == 0) for i in range(16)]
    for x in [*inputs, *inputs, *reversed(inputs), *inputs[::3]]:
        assert torch.equal(f(x), x * 2 + 1)
    assert f.explain(inputs[0]).entries == 16


def test_switches_and_constants_have_entries_of_their_own():
    f = aotkit.compile(lambda x, n: x * n, backend="nop", check=False)
    x = torch.ones(2, requires_grad=True)
    kinds = [(n, grad) for n in (1, 2.0, True, 3) for grad in (True, False)]
    for n, grad in [*kinds, *kinds, *reversed(kinds)]:
        with torch.set_grad_enabled(grad):
            y = f(x, n)
        assert torch.equal(y, x * n)
        assert y.requires_grad == grad
    assert f.explain(x, 1).entries == len(kinds)


def test_number_of_entries_is_limited(monkeypatch):
    """Beyond it, the oldest give way, with a warning; results stay right."""
    monkeypatch.setattr(cache, "MOST_ENTRIES", 8)
    f = aotkit.compile(lambda x, n: x.sum(0) * n, backend="nop", check=False, dynamic=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", aotkit.RecompilationWarning)
        for rows, n in itertools.product(range(1, 7), (1, 2)):
            x = torch.randn(rows, 2)
            assert torch.equal(f(x, n), x.sum(0) * n)
    assert f.explain(torch.ones(6, 2), 2).entries == 8
    (warning,) = caught
    assert "compiled for 8 kinds of inputs, as many as are kept" in str(warning.message)
    assert warning.filename == __file__
    for rows, n in itertools.product(range(1, 7), (1, 2)):
        x = torch.randn(rows, 2)
        assert torch.equal(f(x, n), x.sum(0) * n)


def test_limit_is_documented():
    assert str(cache.MOST_ENTRIES) in aotkit.compile.__doc__


def test_keywords_find_the_entry_of_positions():
    def scaled(x, n=2):
        return x * n

    f = aotkit.compile(scaled, backend="nop", check=False)
    x = torch.ones(2)
    for y in (f(x, 2), f(x=x, n=2), f(n=2, x=x), f(x, n=2), f(x)):
        assert torch.equal(y, x * 2)
    assert f.explain(x).entries == 1


def test_arguments_have_the_names_of_parameters():
    def scaled(x, *factors, **shifts):
        return x * factors[0] * factors[1] + shifts["shift"]

    x = torch.ones(2)
    graphs = aotkit.compile(torch.no_grad()(scaled), backend="nop").graphs(x, x, x, shift=x)
    assert graphs.input_names == ("x", "factors[0]", "factors[1]", "shift")
