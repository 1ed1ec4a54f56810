"""GELU of half precision under Inductor: of every value that there is, against float64."""

import math

import pytest
import torch
from torch.nn.functional import gelu

import aotkit
from aotkit.backends.inductor_graphs.stored_values import LONGER, THRESHOLD, limits

TYPES = [torch.float16, torch.bfloat16]


def all_values(dtype):
    return torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)


def in_order(x):
    """Numbers that differ by 1 for neighbours."""
    bits = x.view(torch.int16).int()
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


def exact_and_gradient(x):
    """In float64. Where GELU is positive, from Phi; where it is not, from erfc, which cancels nothing."""
    x = x.double().requires_grad_()
    y = x * torch.special.erfc(-x / math.sqrt(2)) / 2
    return y.detach(), torch.autograd.grad(y.sum(), x)[0]


@pytest.fixture(scope="module", params=TYPES)
def results(request):
    """Every value, its GELU and the gradient. The last three are those of the loop that vectors leave a rest for."""
    special = torch.tensor([math.inf, -math.inf, math.nan], dtype=request.param)
    x = torch.cat([all_values(request.param), special]).requires_grad_()
    y = aotkit.compile(gelu, backend="inductor", check=False)(x)
    return x.detach(), y.detach(), torch.autograd.grad(y.sum(), x)[0]


def has_bfloat16s_tail(x):
    """Where bfloat16 still has 2**-50 and less."""
    return (x < -8) & (x > -14)


def test_every_value_is_right_to_the_last_digit(results):
    x, result, _ = results
    tested = x.isfinite() & ~has_bfloat16s_tail(x)
    exact, result = exact_and_gradient(x)[0][tested].to(x.dtype), result[tested]
    assert (in_order(result) - in_order(exact)).abs().max() <= 1
    assert (in_order(result) != in_order(exact)).float().mean() < 0.01


def test_what_bfloat16_still_has_of_the_tail_is_no_further_off_than_in_eager(results):
    x, result, _ = results
    exact, _ = exact_and_gradient(x)
    error, eager = ((y.double() - exact).abs()[has_bfloat16s_tail(x)] for y in (result, gelu(x)))
    assert (error <= eager).all()


def test_every_gradient_is_right_to_the_last_digit_or_a_millionth(results):
    x, _, gradient = results
    _, exact = exact_and_gradient(x)
    exact = exact.nan_to_num(0.0)  # float64's square of the largest is infinite, and its density 0
    last_digit = torch.finfo(x.dtype).eps * exact.abs()
    assert ((gradient.double() - exact).abs() <= last_digit + 4e-6)[x.isfinite()].all()


def test_what_is_not_finite(results):
    """As of x (1 + erf(x / sqrt(2))) / 2. Eager's own kernel for a CPU makes NaN of infinity."""
    x, result, _ = results
    assert (result[x == math.inf] == math.inf).all()
    assert result[(x == -math.inf) | x.isnan()].isnan().all()


@pytest.mark.thinned
# None has erf with tanh: one type stands for all.
@pytest.mark.parametrize(
    ("dtype", "approximate"),
    [
        *((dtype, "none") for dtype in (torch.float32, *TYPES)),
        (torch.bfloat16, "tanh"),
        *(pytest.param(dtype, "tanh", marks=pytest.mark.sweep) for dtype in (torch.float32, torch.float16)),
    ],
)
def test_each_kind_passes_the_check_and_only_half_precision_does_without_erf(dtype, approximate):
    def fn(x, bias):
        return gelu(x + bias, approximate=approximate).float().sum(-1)

    x = torch.randn(64, 96, dtype=dtype, requires_grad=True)
    bias = torch.randn(96, dtype=dtype, requires_grad=True)
    fast = aotkit.compile(fn, backend="inductor")
    fast(x, bias).sum().backward()
    assert (" = erf(" in str(fast.graphs(x, bias))) == (dtype == torch.float32 and approximate == "none")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_phi_that_two_values_need_counts_as_few_operators(dtype):
    """On a GPU, Inductor wrote it to memory for both: in float32, twice the size of what it is computed from."""
    gated = torch.nn.Linear(8, 16).to(dtype)
    settings = []

    def noting(gm, inputs):
        settings.append(limits(gm)["realize_opcount_threshold"])
        return gm

    backend = aotkit.Backend(noting, decompositions=aotkit.get_backend("inductor").decompositions)

    def f(x):
        value, gate = gated(x).chunk(2, -1)
        return value * gelu(gate)

    aotkit.compile(f, backend=backend)(torch.randn(4, 8, dtype=dtype, requires_grad=True)).sum().backward()
    default = torch._inductor.config.realize_opcount_threshold
    assert settings == ([(default or THRESHOLD) + LONGER] * 2 if dtype is torch.bfloat16 else [default] * 2)
