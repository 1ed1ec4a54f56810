"""Requirements on values: how inputs lie in memory, their types, their sizes, and which of them require gradients."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from aotkit.testing.case import Case, Inputs
from aotkit.testing.conformance.compare import (
    equals_eager,
    equals_eager_under_each_partitioner,
    equals_eager_with_open_sizes,
)
from aotkit.testing.conformance.requirements import Requirements
from aotkit.testing.zoo import CASES


def _block(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Pointwise, a reduction, and views, of two matrices of one shape."""
    return (x.sin() * y + x.t().reshape(y.shape)).softmax(-1), (x * y).sum(0)


case = Case.of

LAYOUTS = [
    case("contiguous", _block, lambda new: (new.normal(4, 6), new.normal(4, 6))),
    case("transposed", _block, lambda new: (new.normal(6, 4).t(), new.normal(6, 4).t())),
    case("transposed_and_not", _block, lambda new: (new.normal(6, 4).t(), new.normal(4, 6))),
    case("strided", _block, lambda new: (new.normal(8, 12)[::2, ::2], new.normal(4, 6))),
    case("expanded", _block, lambda new: (new.normal(1, 6).expand(4, 6), new.normal(4, 1).expand(4, 6))),
    case("offset", _block, lambda new: (new.normal(7, 6)[3:], new.normal(25)[1:].view(4, 6))),
    case("overlapping", _block, lambda new: (new.normal(9).unfold(0, 6, 1), new.normal(4, 6))),
    case(
        "channels_last",
        lambda x, w: (F.conv2d(x, w).relu() * 2, x.flatten(1).sum(1)),
        lambda new: (new.normal(2, 3, 5, 4).to(memory_format=torch.channels_last), new.normal(4, 3, 3, 3)),
    ),
    case(
        "permuted_3d",
        lambda x, w: (x @ w).tanh() * x[..., :5],
        lambda new: (new.normal(5, 2, 6).permute(1, 0, 2), new.normal(6, 5)),
    ),
    case("weight_transposed", lambda x, w: F.linear(x, w.t()).relu(), lambda new: (new.normal(4, 6), new.normal(6, 3))),
    case("returns_strided", lambda x: ((x * 2).t(), x.cos()[:, ::2], x.sin()[1:]), lambda new: (new.normal(4, 6),)),
    case("returns_expanded", lambda x: (x.sin()[:, None].expand(4, 3), x.sum()), lambda new: (new.normal(4),)),
]


def _floating(x: Tensor, w: Tensor) -> Any:
    return (x @ w).tanh(), (x * 2 + 1).sum(1), x > 0


def _complex(x: Tensor, y: Tensor) -> Any:
    return x * y.conj(), (x + 2).abs(), torch.view_as_real(y * 2), y.real * 3


def _integer(x: Tensor, y: Tensor) -> Any:
    return x * 3 + y, (x > y).sum(), x // (y + 1), x & y, x.sum(0), x.float().exp()


def _typed(dtype: torch.dtype, function: Callable[..., Any], *second: int) -> Case:
    """A function of two tensors of one type; `second` is the shape of the other one."""

    def inputs(new: Inputs) -> tuple[Any, ...]:
        if dtype.is_floating_point or dtype.is_complex:
            return new.normal(4, 6, dtype=dtype), new.normal(*second, dtype=dtype)
        return new.integers(9, 4, 6).to(dtype), new.integers(9, *second).to(dtype)

    return case(str(dtype).removeprefix("torch."), function, inputs)


FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]

DTYPES = [
    *(_typed(dtype, _floating, 6, 5) for dtype in FLOATS),
    *(_typed(dtype, _complex, 4, 6) for dtype in (torch.complex64, torch.complex128)),
    *(_typed(dtype, _integer, 4, 6) for dtype in INTEGERS),
    case(
        "bool",
        lambda a, b: (a & b | ~a, a.sum(), a.any(0), torch.where(a, 1.0, 2.0)),
        lambda new: (new.values(4, 6) > 0, new.values(4, 6) > 0),
    ),
    case(
        "mixed",
        # The gradient of x has nothing of half precision, in which compilers round as they like.
        lambda x, h, n: (x * h.float() + n, (x.detach().half() * h).sum(), n * x.double()),
        lambda new: (new.normal(4, 6), new.normal(4, 6, dtype=torch.float16), new.integers(9, 4, 6)),
    ),
    case(
        "converted",
        lambda x: (x.double().exp().float(), x.bfloat16().float(), (x * 9).long(), x.to(torch.bool)),
        lambda new: (new.normal(4, 6),),
    ),
]


def _any_size(x: Tensor, y: Tensor) -> Any:
    return (x * y).sin() + x, x.sum(), (x + 1).reshape(-1)


def _size(name: str, *shape: int) -> Case:
    return case(name, _any_size, lambda new: (new.normal(*shape), new.normal(*shape)))


SIZES = [
    _size("zero", 0),
    _size("zero_of_two", 3, 0),
    _size("zero_dim", *()),
    _size("one", 1),
    _size("ones", 1, 1, 1),
    _size("prime", 17, 13),
    _size("more_than_a_vector", 1027),
    _size("five_dims", 2, 3, 1, 2, 2),
    case("large_sum", lambda x: (x.square().mean(), x.amax(1)), lambda new: (new.normal(70, 1031),)),
    case("zero_times_matrix", lambda x, w: ((x @ w).relu(), w.sum()), lambda new: (new.normal(0, 4), new.normal(4, 3))),
    case("zero_inside", lambda x, w: x @ w + 1, lambda new: (new.normal(3, 0), new.normal(0, 4))),
]


def _product(x: Tensor, w: Tensor, *unused: Tensor) -> Tensor:
    return (x @ w).tanh()


GRADIENTS = [
    case("all", _product, lambda new: (new.normal(4, 6), new.normal(6, 3))),
    case("first_only", _product, lambda new: (new.normal(4, 6), new.values(6, 3))),
    case("second_only", _product, lambda new: (new.values(4, 6), new.normal(6, 3))),
    case("none", _product, lambda new: (new.values(4, 6), new.values(6, 3))),
    case("unused_input", _product, lambda new: (new.normal(4, 6), new.normal(6, 3), new.normal(2))),
    case("detached_output", lambda x: (x.sin(), x.detach().exp()), lambda new: (new.normal(4, 6),)),
    case("through_one_of_two", lambda x, y: x.detach() * y, lambda new: (new.normal(4, 6), new.normal(4, 6))),
    case("equal_gradients", lambda x, y: x + y, lambda new: (new.normal(4, 6), new.normal(4, 6))),
    case("of_no_leaf", lambda x: x.sin() * x, lambda new: (new.computed(4, 6),)),
    case("many_uses", lambda x: x.sin() + x.cos() * x + x.sum() * x.exp(), lambda new: (new.normal(4, 6),)),
    case("zero", lambda x: (x * 0).sin() + x.sign(), lambda new: (new.normal(4, 6),)),
]

ZOO = Requirements("zoo").add_cases(
    "Outputs, gradients, arguments and buffers after the call are eager's, under each of aotkit's partitioners.",
    CASES,
    equals_eager_under_each_partitioner,
)
FUNCTIONS = Requirements("zoo").add_cases(
    "Outputs, gradients, arguments and buffers after the call are eager's, with fixed sizes and with open ones.",
    CASES,
    equals_eager_with_open_sizes,
)
LAYOUT = Requirements("layout").add_cases(
    "Inputs and outputs that lie in memory in this way give eager's values.", LAYOUTS, equals_eager
)
DTYPE = Requirements("dtype").add_cases(
    "Tensors of this type give eager's values, in eager's types.", DTYPES, equals_eager
)
SIZE = Requirements("sizes").add_cases("Tensors of this size give eager's values.", SIZES, equals_eager)
GRADIENT = Requirements("gradients").add_cases(
    "With these inputs requiring gradients, values and gradients are eager's.", GRADIENTS, equals_eager
)
BACKENDS = Requirements("backend")
for _backend in ("nop", "print"):
    BACKENDS.add_cases(
        "Graphs run under this backend as they are.",
        [case(_backend, _block, LAYOUTS[0].inputs)],
        functools.partial(equals_eager, backend=_backend),
    )
