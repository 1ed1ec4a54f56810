"""Operators that take functions: TorchDynamo captures what calls them, and the modes of the check let them pass."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention

import aotkit

WEIGHT = nn.Parameter(torch.randn(8, 8))


def chooses(x):
    return torch.cond(x.sum() > 0, lambda x: (x @ WEIGHT).sin(), lambda x: (x @ WEIGHT).cos(), (x,))


def chooses_and_drops(x):
    return F.dropout(chooses(F.dropout(x, 0.5)), 0.5)


def repeats(x):
    return torch.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x.sin()), (torch.tensor(0), x))[1]


def attends(x):
    x = x.view(1, 1, *x.shape)
    return flex_attention(x, x, x, score_mod=lambda score, batch, head, i, j: score + (i - j))


@pytest.mark.parametrize("fn", [chooses, repeats, attends])
@pytest.mark.parametrize("capture", ["auto", "dynamo"])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_it_is_compiled(fn, capture):
    x = torch.rand(16, 8)
    with torch.set_grad_enabled(fn is chooses):  # the others have no derivative, here or on a CPU
        fast = aotkit.compile(fn, backend="nop", capture=capture)
        assert torch.allclose(fast(x), fn(x), atol=1e-6)
        explanation = fast.explain(x)
    assert (explanation.eager, explanation.pieces) == (None, 1)
    if fn is chooses:
        assert torch.allclose(fast(-x), fn(-x), atol=1e-6)
        (want,) = torch.autograd.grad(fn(-x).sum(), WEIGHT)
        assert torch.allclose(torch.autograd.grad(fast(-x).sum(), WEIGHT)[0], want, atol=1e-5)


def test_random_numbers_around_it_are_shared():
    fast = aotkit.compile(chooses_and_drops, backend="nop")
    result = fast(torch.rand(16, 8))
    assert 0 < result.count_nonzero() < result.numel()
    result.sum().backward()
    assert WEIGHT.grad.count_nonzero()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_the_function_still_runs_uncompiled():
    """What torch captures for eager under a mode of ours would be passed over from then on, and be an error."""
    x = torch.rand(16, 8)
    with torch.no_grad():
        want = attends(x)
        with pytest.warns(aotkit.EagerCallWarning, match="'flex_attention', which torch has TorchDynamo capture"):
            assert torch.equal(aotkit.compile(attends, backend="nop", capture="aot")(x), want)
        assert torch.equal(attends(x), want)
