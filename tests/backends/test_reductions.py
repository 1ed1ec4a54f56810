"""What backends that fuse make of reductions: of rows, of columns, of long rows, of special values."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import aotkit
from tests.sweeping import GPU_KIND

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(params=["inductor", "fuser"])
def fusing(request):
    if (reason := aotkit.backend_status()[request.param]) is not None:
        pytest.skip(reason)
    return request.param


def assert_as_exact(found, exact, eager):
    """About as close to the results in float64 as eager's."""
    assert found.dtype == eager.dtype
    error, of_eager = ((some.double() - exact.double()).abs().max() for some in (found, eager))
    resolution = torch.finfo(found.dtype).eps if found.is_floating_point() else 0
    assert error <= 4 * of_eager + 8 * resolution * exact.double().abs().max()


LARGEST = {torch.bool: True, torch.int64: 2**62, torch.float16: torch.inf, torch.float64: torch.inf}


def extrema(x, y):
    return x.amax(-1), x.amin(-1), torch.maximum(x, y), torch.minimum(x, y)


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", [*LARGEST, torch.float32, torch.bfloat16, torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("width", [1000, pytest.param(20000, marks=GPU_KIND)])  # in one go, and by a loop
def test_extrema_keep_nan_in_every_type(device, fusing, dtype, width):
    x, y = (torch.randint(-99, 99, (64, width), device=device).to(dtype) for _ in range(2))
    x[3, 7], x[4] = LARGEST.get(dtype, 100), x[4, 0]
    if dtype.is_floating_point:
        x[5, width // 2] = y[6, width // 3] = x[7, 1] = y[7, 1] = torch.nan
        x[8], x[9, 9] = -torch.inf, torch.inf
    for found, expected in zip(aotkit.compile(extrema, backend=fusing)(x, y), extrema(x, y), strict=True):
        torch.testing.assert_close(found, expected, equal_nan=True, rtol=0, atol=0)


@pytest.mark.thinned
@pytest.mark.parametrize("width", [1000, 20000])
def test_the_sum_of_a_softmax_is_as_exact_as_its_type(device, fusing, width):
    """With differences to the maximum of any size, and a maximum that is far from 0."""
    x = torch.randn(64, width, device=device) * torch.logspace(-3, 3, 64, device=device)[:, None]
    x[::2] += 300
    x[5, 1:] = -torch.inf
    x[7, 3], x[9, 3] = torch.nan, torch.inf
    targets = torch.zeros(64, dtype=torch.int64, device=device)

    def losses(x):
        return F.cross_entropy(x, targets, reduction="none")

    found, exact, eager = aotkit.compile(losses, backend=fusing)(x), losses(x.double()), losses(x)
    torch.testing.assert_close(found, eager, equal_nan=True)
    finite = exact.isfinite()
    error = (found - exact)[finite].abs().max()
    assert error <= 2 * (eager - exact)[finite].abs().max() + 1e-6


@needs_gpu
def test_a_target_that_is_no_class_is_an_error():
    code = """
import torch, aotkit
x, targets = torch.randn(4096, 4096, device="cuda"), torch.full((4096,), 4096, device="cuda")
loss = aotkit.compile(torch.nn.functional.cross_entropy, backend="inductor", check=False)
print("found", loss(x, targets).item())
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode
    assert "found" not in found.stdout
    assert "index out of bounds: 0 <= " in found.stderr


@pytest.mark.parametrize("rows", [(5,), *(pytest.param(rows, marks=GPU_KIND) for rows in ((3, 2), (64,)))])
def test_a_few_long_rows(device, fusing, rows):
    x = torch.randn(*rows, 12288, device=device, requires_grad=True)
    weight = torch.randn(12288, device=device, requires_grad=True)
    targets = torch.randint(12288, rows, device=device)

    def loss(x, weight):
        y = F.layer_norm(x, weight.shape, weight)
        return F.cross_entropy(y.flatten(0, -2), targets.flatten()) + (x * y.softmax(-1)).amax(-1).sum()

    found = aotkit.compile(loss, backend=fusing)(x, weight)
    torch.testing.assert_close(found, loss(x, weight))
    found.backward()


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_long_rows_of_half_precision(device, fusing, dtype):
    def normalized(x, weight, bias):
        return x + F.layer_norm(F.dropout(x, 0.1), weight.shape, weight, bias)

    x, weight, bias = (torch.randn(*size, 12288, device=device, dtype=dtype) for size in ((512,), (), ()))
    assert aotkit.check(normalized, x, weight, bias, backend=fusing).passed


def double_relu(x):
    return (2 * x).relu()


def elements_and_their_sums(x):
    y = double_relu(x)
    return y, y.sum((0, 1))


def sums_of_what_is_not_returned(x):
    y = x.softmax(-1)
    return y.amax(-1), (y * y).sum((0, 1))


def sums_of_what_rows_give(x):
    y = (x - x.mean(-1, keepdim=True)) * x.var(-1, keepdim=True).rsqrt()
    return y, y.sum((0, 1)), (x * y).sum((0, 1)), x.sum((0, 1))


def sums_of_what_is_not_zero_where_nothing_is_read(x):
    return x.softmax(-1), x.exp().sum((0, 1))


def sums_of_narrow_values(x):
    y = double_relu(x).half()
    return y, y.sum((0, 1))


def sums_of_other_columns(x):
    y = double_relu(x)
    return y, y.sum(1), y.transpose(0, 1).reshape(-1, x.shape[-1] // 2).sum(0)


def sums_of_turned_rows(x):
    y = double_relu(x)
    return y, y.flip(1).sum((0, 1))


def sums_that_take_more_than_float32(x):
    return x.softmax(-1), x.double().sum((0, 1)), (x > 0).sum((0, 1))


def sums_of_what_another_kernel_gives(x):
    y = x.softmax(-1)
    return y, (y * (y @ y.transpose(1, 2) @ y)).sum((0, 1))


def sums_that_need_sums(x):
    y = double_relu(x)
    sums = y.sum((0, 1))
    return y, (y - sums).square().sum((0, 1))


def two_widths(x):
    y = 2 * x.view(-1, x.shape[-1] // 2)
    return y, y.sum(0), y.view(x.shape).sum((0, 1))


def sums_that_are_converted(x):
    total = x.sum((0, 1))
    narrow = x.half().sum(0, dtype=torch.float32).half()
    return total.half(), total.bfloat16(), (total + 1).half(), total[::2].half(), x.sum(-1).half(), narrow


COLUMNS = [
    elements_and_their_sums, sums_of_what_is_not_returned, sums_of_what_rows_give,
    sums_of_what_is_not_zero_where_nothing_is_read, sums_of_narrow_values, sums_of_other_columns, sums_of_turned_rows,
    sums_that_take_more_than_float32, sums_of_what_another_kernel_gives, sums_that_need_sums, two_widths,
    sums_that_are_converted,
]  # fmt: skip


@needs_gpu
@pytest.mark.parametrize("function", COLUMNS)
@pytest.mark.parametrize("shape", [(4, 512, 128), (3, 347, 100), (2, 1031, 1000), (1, 3, 2)], ids=str)
def test_sums_are_those_of_float64(fusing, function, shape):
    x = torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    compiled = aotkit.compile(function, backend=fusing)
    for found, exact, eager in zip(compiled(x), function(x.double()), function(x), strict=True):
        assert_as_exact(found, exact, eager)


def gelu_of_a_sum(x, bias):
    return F.gelu(x + bias)


def norm_of_a_sum(x, weight):
    return F.layer_norm(x + x.sin(), weight.shape, weight)


def norm_of_rows_that_others_need(x, weight):
    z = (x + weight).sin()
    return F.layer_norm(z + z, weight.shape, weight) * z.flip(1)


@needs_gpu
@pytest.mark.parametrize("shape", [(4, 513, 128), (1, 256, 12288)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("partition", ["default", "nx_min_cut"])
@pytest.mark.parametrize("function", [gelu_of_a_sum, norm_of_a_sum, norm_of_rows_that_others_need])
def test_gradients_of_rows_and_columns_are_those_of_float64_each_time(fusing, function, partition, dtype, shape):
    """With a graph that is retained, from which nothing must be overwritten."""
    generator = torch.Generator("cuda").manual_seed(0)
    sizes = shape, shape[-1:], shape
    *inputs, cotangent = (torch.randn(size, device="cuda", dtype=dtype, generator=generator) for size in sizes)
    inputs = [x.requires_grad_() for x in inputs]
    result = aotkit.compile(function, backend=fusing, partition=partition, check=False)(*inputs)
    wide = [x.detach().double().requires_grad_() for x in inputs]
    exact = torch.autograd.grad(function(*wide), wide, cotangent.double())
    eager = torch.autograd.grad(function(*inputs), inputs, cotangent)
    for is_retained in (True, True, False):
        found = torch.autograd.grad(result, inputs, cotangent, retain_graph=is_retained)
        for one, *others in zip(found, exact, eager, strict=True):
            assert_as_exact(one, *others)
