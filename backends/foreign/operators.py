"""The operators that compilers from elsewhere get, and why a node is declined.

The list is short on purpose: an importer that knows an operator by name may still compute something else. Tests hold
each of these, under each compiler, to ATen's values, with infinities and NaN among them.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from aotkit.passes import tensors_of

aten = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
DTYPES = (torch.float64, torch.float32, *HALVES, *INTEGERS, torch.bool)


def _overloads(names: str, overloads: str = "default") -> frozenset[Any]:
    return frozenset(getattr(getattr(aten, name), o) for name in names.split() for o in overloads.split())


COMPARISONS = _overloads("eq ne lt le gt ge", "Scalar Tensor")
EXTREMES = _overloads("maximum minimum")
ARITHMETIC = _overloads("add sub mul div", "Scalar Tensor") | _overloads("abs clamp neg relu sign") | EXTREMES
ARITHMETIC |= {aten.pow.Tensor_Scalar}
# Which ATen computes by products, quotients and roots, and not as powers; the last two not in half precision.
POWERS = (2, 3, -1, -2, 0.5, -0.5)
FUNCTIONS = _overloads("exp expm1 log log1p sin cos tanh sigmoid erf sqrt rsqrt reciprocal floor ceil trunc")
BITS = _overloads("bitwise_and bitwise_or bitwise_xor", "Scalar Tensor") | _overloads("__rshift__ __lshift__", "Scalar")
BITS |= _overloads("bitwise_not")
LOGIC = _overloads("logical_and logical_or logical_not")
SUMS = frozenset({aten.sum.dim_IntList, aten.mean.dim})
REDUCTIONS = SUMS | {aten.amax.default, aten.amin.default, aten.any.dim}
COPIES = _overloads("alias clone")
RESHAPES = frozenset({aten.view.default, aten.unsqueeze.default, aten.squeeze.dims})
SHAPES = RESHAPES | {aten.expand.default, aten.permute.default, aten.slice.Tensor, aten.select.int}
CHOICES = frozenset({aten.where.self, aten.cat.default, aten.gather.default})
CONSTANTS = frozenset({aten.full.default, aten.full_like.default, aten.scalar_tensor.default, aten.arange.start_step})
CAST = aten._to_copy.default
OPERATORS: frozenset[Any] = COMPARISONS | ARITHMETIC | FUNCTIONS | BITS | LOGIC | REDUCTIONS
OPERATORS |= COPIES | SHAPES | CHOICES | CONSTANTS | {CAST}

Why = Callable[[Node], str | None]


def declining(name: str, lacks: Mapping[Any, str], devices: Mapping[str, Callable[[], str | None]]) -> Why:
    """A `Backend.declines`.

    Args:
        name: of the compiler.
        lacks: an operator, a dtype, or a pair of both -> why the compiler does not take it.
        devices: type of device -> why the compiler cannot use one, or None; it takes tensors of no other type.
    """

    def declines(node: Node) -> str | None:
        if node.op != "call_function" or node.target not in OPERATORS:
            return f"not among the operators that {name} gets; most are better with ATen's libraries"
        values = [v for n in (node, *node.all_input_nodes) for v in _values(n)]
        if len({v.device for v in values if isinstance(v, Tensor)}) > 1:
            return "its tensors are on several devices"
        reasons = [_unlike(node), *(_unknown(name, v, lacks, devices) for v in values), _lack(node, values, lacks)]
        return next(filter(None, reasons), None)

    return declines


def _values(node: Node) -> Collection[Any]:
    return tensors_of(node) or (node.meta.get("val"),)


def _lack(node: Node, values: Collection[Any], lacks: Mapping[Any, str]) -> str | None:
    keys = (node.target, *((node.target, v.dtype) for v in values if isinstance(v, Tensor)))
    return next((lacks[key] for key in keys if key in lacks), None)


def _unlike(node: Node) -> str | None:
    """Why an operator is not what its name says."""
    value = node.meta["val"]
    if node.target is aten.any.dim and value.dtype is not torch.bool:
        return "a truth value that is no truth value, but a number"
    are_truths = all(i.meta["val"].dtype is torch.bool for i in node.all_input_nodes)
    if (node.target in ARITHMETIC and value.dtype is torch.bool) or (node.target in COMPARISONS and are_truths):
        return "arithmetic of truth values"
    if node.target in COMPARISONS and node.args[0] is node.args[1]:
        return "a comparison with itself, which compilers fold as if there was no NaN"
    if node.target is aten.pow.Tensor_Scalar and node.args[1] not in _powers(value.dtype):
        return "a power that consists of no products, quotients or roots"
    if node.target in FUNCTIONS and not value.dtype.is_floating_point:
        return "a function of integers that gives integers"
    return None


def _powers(dtype: torch.dtype) -> Collection[float]:
    if not dtype.is_floating_point:
        return ()
    return POWERS[:4] if dtype in HALVES else POWERS


def _unknown(
    name: str, value: Any, lacks: Mapping[Any, str], devices: Mapping[str, Callable[[], str | None]]
) -> str | None:
    """Why the compiler does not take a value."""
    if not isinstance(value, Tensor):
        return "a number that is computed" if value is not None else "a value that is not described"
    if value.layout is not torch.strided or value.dtype not in DTYPES:
        return f"{name} has no tensors of {value.dtype if value.layout is torch.strided else value.layout}"
    if value.dtype in lacks:
        return lacks[value.dtype]
    if not all(isinstance(size, int) for size in (*value.shape, *value.stride())):
        return f"{name} compiles for fixed sizes, and some are open; compile with dynamic=False"
    if value.numel() == 0:
        return "a tensor without elements"
    if value.device.type not in devices:
        return f"{name} takes tensors on {' and '.join(devices)}, not on {value.device.type}"
    return devices[value.device.type]()
