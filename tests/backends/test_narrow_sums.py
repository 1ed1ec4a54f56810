"""Sums that are stored in the type that they are converted to."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import aotkit
from aotkit.backends.inductor_graphs.compiling import decompositions
from aotkit.torch_private.kernel_changes.narrow_sums import conversion_of
from tests.kernel_changes import needs_change

ROWS, WIDTH = 4096, 1024


def only_converted(x):
    return x.sum(0).half()


def viewed_and_converted(x):
    return x.sum(0, keepdim=True).view(-1).bfloat16()


def widened(x):
    return x.sum(0).double()


def used_twice(x):
    total = x.sum(0)
    return total.half(), total


def converted_twice(x):
    total = x.sum(0)
    return total.half(), total.bfloat16()


def computed_with(x):
    return (x.sum(0) + 1).half()


def sliced(x):
    return x.sum(0)[::2].half()


def of_rows(x):
    return x.sum(1).half()


def of_narrow_values(x):
    return x.half().sum(0, dtype=torch.float32).half()


def product(x):
    return x.prod(0).half()


FUNCTIONS = {
    only_converted: True, viewed_and_converted: True, widened: True, used_twice: False, converted_twice: False,
    computed_with: False, sliced: False, of_rows: True, of_narrow_values: True,
}  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_converts_a_sum(function):
    graph = make_fx(function, decomposition_table=decompositions())(torch.ones(4, 6)).graph
    (total,) = graph.find_nodes(op="call_function", target=torch.ops.aten.sum.dim_IntList)
    found = conversion_of(total)
    assert (found is not None) == FUNCTIONS[function]
    assert found is None or found.target is torch.ops.prims.convert_element_type.default


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("shape", [(ROWS, WIDTH), (5, 7), (1, 3), (3, 1)], ids=str)
@pytest.mark.parametrize("function", [*FUNCTIONS, product])
def test_sums_are_converted_once(function, shape):
    x = torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    found, exact = aotkit.compile(function, backend="inductor")(x), function(x.double())
    for value, true, eager in zip(*map(torch.utils._pytree.tree_leaves, (found, exact, function(x))), strict=True):
        assert value.dtype == eager.dtype
        resolution = torch.finfo(value.dtype).eps if value.dtype.itemsize == 2 else 1e-5
        torch.testing.assert_close(value, true.to(value.dtype), rtol=2 * resolution, atol=100 * resolution)


@needs_change("narrow_sums")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_no_kernel_but_the_one_that_adds_up_converts():
    kernels = aotkit.compile(viewed_and_converted, backend="inductor").explain(torch.randn(ROWS, WIDTH, device="cuda"))
    operations = [launched.kernel.operations for launched in kernels.kernels.kernels]
    assert len(operations) <= 2
    assert any("convert" in name for name in operations[-1])
    assert any("sum" in name for name in operations[-1])
