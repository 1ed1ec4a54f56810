"""Pointwise operators: arithmetic, conversions, comparisons, logic and choices. What is compared is rounded first."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from aotkit.backends.fusion_definition.builder import Builder, Declined, computed_in, dtype_of

aten = torch.ops.aten
Lowering = Callable[..., Any]
OF_BOOLEANS = {"mul": "logical_and", "minimum": "logical_and", "add": "logical_or", "maximum": "logical_or"}


def number_type(node: Node) -> torch.dtype:
    """The type to compute a result in.

    Raises:
        Declined: booleans, with which C++ computes otherwise than ATen.
    """
    if dtype_of(node) is torch.bool:
        raise Declined("arithmetic of booleans")
    return compute_type(node)


def compute_type(node: Node) -> torch.dtype:
    """The type to compute a tensor in."""
    return computed_in(dtype_of(node))


def same(name: str, type_of: Callable[[Node], torch.dtype], b: Builder, node: Node, *operands: Any) -> Any:
    """An operation of nvFuser's on operands in one type."""
    dtype = type_of(node)
    return getattr(b.ops, name)(*(b.operand(x, dtype) for x in operands))


def rounding(name: str, b: Builder, node: Node, x: Any) -> Any:
    """Rounding to integers, which stay as they are."""
    dtype = compute_type(node)
    value = b.rounded(x, dtype)
    return getattr(b.ops, name)(value) if dtype.is_floating_point else b.ops.set(value)


def shifted(name: str, b: Builder, node: Node, x: Any, by: Any) -> Any:
    """A shift by a number of bits; to the right, the sign comes in, as in ATen."""
    dtype = number_type(node)
    if isinstance(by, Node) or dtype.is_floating_point or not 0 <= by < torch.iinfo(dtype).bits:
        raise Declined("shifts by other than a number of bits that the integer has")
    return getattr(b.ops, name)(b.operand(x, dtype), b.constant(by, dtype))


def arithmetic(name: str, b: Builder, node: Node, x: Any, y: Any) -> Any:
    """Of booleans, ATen's is logic."""
    if dtype_of(node) is torch.bool and name in OF_BOOLEANS:
        return logical(OF_BOOLEANS[name], b, node, x, y)
    return same(name, number_type, b, node, x, y)


def scaled_sum(name: str, b: Builder, node: Node, x: Any, y: Any, alpha: Any = 1) -> Any:
    """`x + alpha * y` or `x - alpha * y`."""
    if alpha == 1:
        return arithmetic(name, b, node, x, y)
    dtype = number_type(node)
    term = b.ops.mul(b.operand(y, dtype), b.constant(alpha, dtype))
    return getattr(b.ops, name)(b.operand(x, dtype), term)


def sign(b: Builder, node: Node, x: Any) -> Any:
    return b.ops.sign(b.rounded(x, number_type(node)))


def bitwise_not(b: Builder, node: Node, x: Any) -> Any:
    dtype = dtype_of(node)
    return (b.ops.logical_not if dtype is torch.bool else b.ops.bitwise_not)(b.operand(x, dtype))


def divided_and_rounded(b: Builder, node: Node, x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    dtype = number_type(node)
    n, d = b.rounded(x, dtype), b.rounded(y, dtype)
    if not dtype.is_floating_point:
        quotient = b.ops.div(n, d)
        if rounding_mode == "trunc":
            return quotient
        below = _signs_differ(b, _rest(b, n, d), d, dtype)
        return b.ops.sub(quotient, b.ops.cast(below, b.type(dtype)))
    if rounding_mode == "floor":
        raise Declined("the floor of a quotient of floating-point numbers, which ATen corrects")
    quotient = b.ops.truediv(n, d)
    return b.ops.trunc(quotient) if rounding_mode == "trunc" else quotient


def remainder(b: Builder, node: Node, x: Any, y: Any) -> Any:
    """With the sign of the divisor."""
    dtype = number_type(node)
    n, d = b.rounded(x, dtype), b.rounded(y, dtype)
    if dtype.is_floating_point:
        return b.ops.remainder(n, d)
    rest = _rest(b, n, d)
    return b.ops.where(_signs_differ(b, rest, d, dtype), b.ops.add(rest, d), rest)


def fmod(b: Builder, node: Node, x: Any, y: Any) -> Any:
    """With the sign of the dividend."""
    dtype = number_type(node)
    n, d = b.rounded(x, dtype), b.rounded(y, dtype)
    return b.ops.fmod(n, d) if dtype.is_floating_point else _rest(b, n, d)


def _rest(b: Builder, n: Any, d: Any) -> Any:
    return b.ops.sub(n, b.ops.mul(b.ops.div(n, d), d))


def _signs_differ(b: Builder, rest: Any, d: Any, dtype: torch.dtype) -> Any:
    """Where a rest is not 0 and has another sign than the divisor."""
    zero = b.constant(0, dtype)
    different = b.ops.ne(b.ops.lt(rest, zero), b.ops.lt(d, zero))
    return b.ops.logical_and(b.ops.ne(rest, zero), different)


def power(b: Builder, node: Node, x: Any, exponent: Any) -> Any:
    dtype = number_type(node)
    base = b.operand(x, dtype)
    match exponent:
        case 1:
            return b.ops.set(base)
        case 2:
            return b.ops.mul(base, base)
        case 3:
            return b.ops.mul(b.ops.mul(base, base), base)
    if not dtype.is_floating_point:
        raise Declined("powers of integers other than 1, 2 and 3")
    match exponent:
        case 0.5:
            return b.ops.sqrt(base)
        case -0.5:
            return b.ops.rsqrt(base)
        case -1:
            return b.ops.reciprocal(base)
    return b.ops.pow(base, b.operand(exponent, dtype))


def clamp(b: Builder, node: Node, x: Any, low: Any = None, high: Any = None) -> Any:
    """Keeps NaN."""
    dtype = number_type(node)
    value = b.operand(x, dtype)
    if low is not None:
        value = b.ops.maximum(value, b.operand(low, dtype))
    return value if high is None else b.ops.minimum(value, b.operand(high, dtype))


def at_most(b: Builder, node: Node, x: Any, high: Any) -> Any:
    return clamp(b, node, x, None, high)


def converted(b: Builder, node: Node, x: Any, dtype: Any = None, *, device: Any = None, **options: Any) -> Any:
    """`_to_copy`, and Inductor's name for it: rounds where the type is narrower; the layout is the graph's."""
    if device is not None and torch.device(device).type != x.meta["val"].device.type:
        raise Declined("copies to another device")
    to = dtype_of(node)
    jumps = dtype_of(x).is_floating_point and not to.is_floating_point
    value = b.rounded(x, to) if jumps else b.operand(x, to)
    return b.ops.set(value) if to is dtype_of(x) else value


def cloned(b: Builder, node: Node, x: Any, *, memory_format: Any = None) -> Any:
    return b.ops.set(b.value(x))


def compared(name: str, b: Builder, node: Node, x: Any, y: Any) -> Any:
    """Compares in the type that both operands promote to."""
    x_value, y_value = (a.meta["val"] if isinstance(a, Node) else a for a in (x, y))
    common = torch.result_type(x_value, y_value)
    if not isinstance(y, Node) and common.is_floating_point:
        y = torch.tensor(y, dtype=common).item()  # ATen rounds the number, too
    return getattr(b.ops, name)(b.rounded(x, computed_in(common)), b.rounded(y, computed_in(common)))


def logical(name: str, b: Builder, node: Node, *operands: Any) -> Any:
    """Combines what is not zero."""
    return getattr(b.ops, name)(*(b.rounded(x, torch.bool) for x in operands))


def classified(name: str, b: Builder, node: Node, x: Any) -> Any:
    """Tells special floating-point numbers."""
    dtype = compute_type(x)
    # No integer is special; in half precision a large number may be infinite.
    return getattr(b.ops, name)(b.rounded(x, dtype if dtype.is_floating_point else torch.float64))


def where(b: Builder, node: Node, condition: Any, x: Any, y: Any) -> Any:
    dtype = compute_type(node)
    return b.ops.where(b.rounded(condition, torch.bool), b.operand(x, dtype), b.operand(y, dtype))


UNARY = "abs neg relu reciprocal sqrt rsqrt sigmoid exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan \
    sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma"
WITH_NUMBERS: dict[str, Lowering] = {  # the second operand may be one
    **{name: partial(scaled_sum, name) for name in ("add", "sub")},
    **{name: partial(compared, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{name: partial(same, name, dtype_of) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    "mul": partial(arithmetic, "mul"),
    "div": partial(same, "truediv", number_type),
    "remainder": remainder,
    "fmod": fmod,
}

POINTWISE: dict[Any, Lowering] = {
    **{getattr(getattr(aten, name), kind): f for name, f in WITH_NUMBERS.items() for kind in ("Tensor", "Scalar")},
    **{getattr(aten, name).default: partial(same, name, compute_type) for name in UNARY.split()},
    **{getattr(aten, name).default: partial(arithmetic, name) for name in ("maximum", "minimum", "atan2")},
    **{getattr(aten, name).default: partial(rounding, name) for name in ("floor", "ceil", "round", "trunc")},
    **{getattr(aten, name).default: partial(logical, name) for name in ("logical_not", "logical_and", "logical_or")},
    **{getattr(aten, name).default: partial(classified, name) for name in ("isnan", "isinf")},
    aten.logical_xor.default: partial(logical, "bitwise_xor"),
    aten.where.self: where,
    aten.sign.default: sign,
    aten.div.Tensor_mode: divided_and_rounded,
    aten.pow.Tensor_Scalar: power,
    aten.pow.Tensor_Tensor: power,
    aten.pow.Scalar: power,
    aten.clamp.default: clamp,
    aten.clamp.Tensor: clamp,
    aten.clamp_min.default: clamp,
    aten.clamp_min.Tensor: clamp,
    aten.clamp_max.default: at_most,
    aten.clamp_max.Tensor: at_most,
    aten.bitwise_not.default: bitwise_not,
    aten.__lshift__.Scalar: partial(shifted, "bitwise_left_shift"),
    aten.__rshift__.Scalar: partial(shifted, "bitwise_right_shift"),
    aten.bitwise_left_shift.Tensor_Scalar: partial(shifted, "bitwise_left_shift"),
    aten.bitwise_right_shift.Tensor_Scalar: partial(shifted, "bitwise_right_shift"),
    aten._to_copy.default: converted,
    torch.ops.prims.convert_element_type.default: converted,
    aten.clone.default: cloned,
}
