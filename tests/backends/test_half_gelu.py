"""GELU of half precision under Inductor: of every value that there is, against float64."""

import math

import pytest
import torch
from torch.nn.functional import gelu

import aotkit

TYPES = [torch.float16, torch.bfloat16]


def all_values(dtype):
    return torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)


def in_order(x):
    """Numbers that differ by 1 for neighbours."""
    bits = x.view(torch.int16).int()
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


def compiled(fn):
    return aotkit.compile(fn, backend="inductor", check=False)


def exact_and_gradient(x):
    """In float64. Where GELU is positive, from Phi; where it is not, from erfc, which cancels nothing."""
    x = x.double().requires_grad_()
    y = x * torch.special.erfc(-x / math.sqrt(2)) / 2
    return y.detach(), torch.autograd.grad(y.sum(), x)[0]


@pytest.mark.parametrize("dtype", TYPES)
def test_every_value_is_right_to_the_last_digit(dtype):
    x = all_values(dtype)
    x = x[x.isfinite() & ~((x < -8) & (x > -14))]  # where bfloat16 still has 2**-50 and less
    exact, _ = exact_and_gradient(x)
    result = compiled(gelu)(x)
    assert (in_order(result) - in_order(exact.to(dtype))).abs().max() <= 1
    assert (in_order(result) != in_order(exact.to(dtype))).float().mean() < 0.01


@pytest.mark.parametrize("dtype", TYPES)
def test_what_bfloat16_still_has_of_the_tail_is_no_further_off_than_in_eager(dtype):
    x = all_values(dtype)
    x = x[(x < -8) & (x > -14)]
    exact, _ = exact_and_gradient(x)
    error, eager = ((f(x).double() - exact).abs() for f in (compiled(gelu), gelu))
    assert (error <= eager).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_every_gradient_is_right_to_the_last_digit_or_a_millionth(dtype):
    x = all_values(dtype)
    x = x[x.isfinite()].requires_grad_()
    (gradient,) = torch.autograd.grad(compiled(gelu)(x).sum(), x)
    _, exact = exact_and_gradient(x.detach())
    exact = exact.nan_to_num(0.0)  # float64's square of the largest is infinite, and its density 0
    last_digit = torch.finfo(dtype).eps * exact.abs()
    assert ((gradient.double() - exact).abs() <= last_digit + 4e-6).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_what_is_not_finite(dtype):
    """As of x (1 + erf(x / sqrt(2))) / 2. Eager's own kernel for a CPU makes NaN of infinity."""
    x = torch.tensor([math.inf, -math.inf, math.nan], dtype=dtype)
    torch.testing.assert_close(
        compiled(gelu)(x), torch.tensor([math.inf, math.nan, math.nan], dtype=dtype), equal_nan=True
    )


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float32, *TYPES])
def test_each_kind_passes_the_check_and_only_half_precision_does_without_erf(dtype, approximate):
    def fn(x, bias):
        return gelu(x + bias, approximate=approximate).float().sum(-1)

    x = torch.randn(64, 96, dtype=dtype, requires_grad=True)
    bias = torch.randn(96, dtype=dtype, requires_grad=True)
    fast = aotkit.compile(fn, backend="inductor")
    fast(x, bias).sum().backward()
    assert (" = erf(" in str(fast.graphs(x, bias))) == (dtype == torch.float32 and approximate == "none")
