"""Sums of columns in the kernel that computes what they sum."""

import pytest
import torch
import torch._inductor.config as config
import torch.nn.functional as F

import aotkit
from aotkit.torch_private.kernel_changes import borrowed_rows, mixed_reductions
from tests.kernel_changes import needs_change

pytestmark = [
    needs_change("mixed_reductions"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    monkeypatch.setattr(mixed_reductions, "LEAST_BYTES", 0)
    monkeypatch.setattr(mixed_reductions, "LEAST_ROWS", 32)
    with config.patch(force_disable_caches=True):  # they do not know that
        yield


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


JOIN = [
    elements_and_their_sums, sums_of_what_is_not_returned, sums_of_what_rows_give,
    sums_of_what_is_not_zero_where_nothing_is_read, sums_of_narrow_values,
]  # fmt: skip


def sums_of_other_columns(x):
    y = double_relu(x)
    return y, y.sum(1), y.transpose(0, 1).reshape(-1, x.shape[-1] // 2).sum(0)


def sums_of_turned_rows(x):
    y = double_relu(x)
    return y, y.flip(1).sum((0, 1))


def sums_of_rows_of_a_square(x):
    y = double_relu(x[0, :64, :64])
    return y, y.sum(-1)


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


OTHERS = [
    sums_of_other_columns, sums_of_turned_rows, sums_of_rows_of_a_square, sums_that_take_more_than_float32,
    sums_of_what_another_kernel_gives, sums_that_need_sums, two_widths,
]  # fmt: skip


@pytest.mark.parametrize("function", [*JOIN, *OTHERS])
@pytest.mark.parametrize("shape", [(4, 512, 128), (3, 347, 100), (2, 1031, 1000)], ids=str)
def test_sums_are_those_of_float64(function, shape):
    x = torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    compiled = aotkit.compile(function, backend="inductor")
    for found, exact, eager in zip(compiled(x), function(x.double()), function(x), strict=True):
        assert_as_exact(found, exact, eager)


def assert_as_exact(found, exact, eager):
    assert found.dtype == eager.dtype
    error, of_eager = ((some.double() - exact.double()).abs().max() for some in (found, eager))
    resolution = torch.finfo(found.dtype).eps if found.is_floating_point() else 0
    assert error <= 4 * of_eager + 8 * resolution * exact.double().abs().max()


@pytest.mark.parametrize("function", JOIN)
def test_they_take_no_kernel_that_reads_it_again(function, monkeypatch):
    monkeypatch.setattr(borrowed_rows, "SHARE", 1.0)  # else some rows are
    x = torch.randn(4, 512, 128, device="cuda")
    kernels = aotkit.compile(function, backend="inductor").explain(x).kernels.kernels
    computing, adding = (k.kernel for k in kernels)
    assert "ws_ptr" in computing.code
    assert adding.name.startswith("triton_added_up")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_bias_gets_its_gradient_from_the_kernel_that_computes_it(dtype):
    def layer(x, bias):
        return F.gelu(x + bias)

    x, bias = (torch.randn(size, device="cuda", dtype=dtype, requires_grad=True) for size in ((4, 513, 128), (128,)))
    compiled = aotkit.compile(layer, backend="inductor", partition="nx_min_cut")
    cotangent = torch.randn_like(x)
    compiled(x, bias).backward(cotangent)
    exact, eager = (
        torch.autograd.grad(layer(x.to(to), bias.to(to)), bias, cotangent.to(to))[0] for to in (torch.float64, dtype)
    )
    assert_as_exact(bias.grad, exact, eager)
    backward = [k for k in compiled.explain(x, bias).kernels.kernels if "ws_ptr" in k.kernel.code]
    assert len(backward) == 1


def norm_of_a_sum(x, y, weight):
    return F.layer_norm(x + y, weight.shape, weight)


def norm_of_rows_that_others_need(x, y, weight):
    z = (x + y).sin()
    return norm_of_a_sum(z, z, weight) * z.flip(1)


def inputs_of_norm(dtype):
    generator = torch.Generator("cuda").manual_seed(0)
    tensors = (torch.randn(size, device="cuda", dtype=dtype, generator=generator) for size in (ROWS, ROWS, ROWS, 128))
    x, y, cotangent, weight = tensors
    return x.requires_grad_(), y, weight.requires_grad_(), cotangent


ROWS = (4, 520, 128)
in_place = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)


@in_place
def test_the_gradient_of_what_is_saved_takes_its_place(dtype):
    x, y, weight, cotangent = inputs_of_norm(dtype)
    compiled = aotkit.compile(norm_of_a_sum, backend="inductor", partition="default", check=False)
    for _ in range(2):  # the first one compiles
        result = compiled(x, y, weight)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        gradients = torch.autograd.grad(result, (x, weight), cotangent)
        added = torch.cuda.max_memory_allocated() - before
        del result, gradients
    assert added < x.nbytes


@in_place
@pytest.mark.parametrize("function", [norm_of_a_sum, norm_of_rows_that_others_need])
def test_nothing_that_is_still_needed_is_overwritten(function, dtype):
    *inputs, cotangent = inputs_of_norm(dtype)
    compiled = aotkit.compile(function, backend="inductor", partition="default", check=False)

    def gradients(results, x, _, weight, **more):
        return torch.autograd.grad(results, (x, weight), cotangent.to(x.dtype), **more)

    results = compiled(*inputs)
    found = [gradients(results, *inputs, retain_graph=is_retained) for is_retained in (True, True, False)]
    wide = [t.double() for t in inputs]
    exact, eager = (gradients(function(*some), *some) for some in (wide, inputs))
    for of_one in found:
        for one, *others in zip(of_one, exact, eager, strict=True):
            assert_as_exact(one, *others)
