"""Pointwise arithmetic, and conversions."""

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from aotkit.backends.fusion_definition.builder import Builder, Declined, computed_in, dtype_of

aten = torch.ops.aten
Lowering = Callable[..., Any]


def unary(name: str) -> Lowering:
    """An operation of the same name, in the type of the result."""

    def lower(b: Builder, node: Node, x: Any) -> Any:
        return getattr(b.ops, name)(b.operand(x, computed_in(dtype_of(node))))

    return lower


def rounding(name: str) -> Lowering:
    """Rounding to integers, which stay as they are."""

    def lower(b: Builder, node: Node, x: Any) -> Any:
        dtype = computed_in(dtype_of(node))
        value = b.rounded(x, dtype)
        return getattr(b.ops, name)(value) if dtype.is_floating_point else b.ops.set(value)

    return lower


def binary(name: str) -> Lowering:
    """An operation of the same name on two operands, in the type of the result; none on booleans."""

    def lower(b: Builder, node: Node, x: Any, y: Any) -> Any:
        dtype = number_type(node)
        return getattr(b.ops, name)(b.operand(x, dtype), b.operand(y, dtype))

    return lower


def bitwise(name: str) -> Lowering:
    """An operation on the bits of integers, or on booleans."""

    def lower(b: Builder, node: Node, x: Any, y: Any) -> Any:
        return getattr(b.ops, name)(b.operand(x, dtype_of(node)), b.operand(y, dtype_of(node)))

    return lower


def shifted(name: str) -> Lowering:
    """A shift by a number of bits; to the right, the sign comes in, as in ATen."""

    def lower(b: Builder, node: Node, x: Any, by: Any) -> Any:
        dtype = number_type(node)
        if isinstance(by, Node) or dtype.is_floating_point or not 0 <= by < torch.iinfo(dtype).bits:
            raise Declined("shifts by other than a number of bits that the integer has")
        return getattr(b.ops, name)(b.operand(x, dtype), b.constant(by, dtype))

    return lower


def scaled_sum(name: str) -> Lowering:
    """`x + alpha * y` or `x - alpha * y`."""

    def lower(b: Builder, node: Node, x: Any, y: Any, alpha: Any = 1) -> Any:
        dtype = number_type(node)
        term = b.operand(y, dtype)
        if alpha != 1:
            term = b.ops.mul(term, b.constant(alpha, dtype))
        return getattr(b.ops, name)(b.operand(x, dtype), term)

    return lower


def number_type(node: Node) -> torch.dtype:
    """The type to compute a result in.

    Raises:
        Declined: booleans, with which C++ computes otherwise than ATen.
    """
    if dtype_of(node) is torch.bool:
        raise Declined("arithmetic of booleans")
    return computed_in(dtype_of(node))


def sign(b: Builder, node: Node, x: Any) -> Any:
    return b.ops.sign(b.rounded(x, number_type(node)))


def bitwise_not(b: Builder, node: Node, x: Any) -> Any:
    dtype = dtype_of(node)
    return (b.ops.logical_not if dtype is torch.bool else b.ops.bitwise_not)(b.operand(x, dtype))


def divided(b: Builder, node: Node, x: Any, y: Any) -> Any:
    dtype = number_type(node)
    return b.ops.truediv(b.operand(x, dtype), b.operand(y, dtype))


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


def converted(b: Builder, node: Node, x: Any, *, dtype: Any = None, device: Any = None, **options: Any) -> Any:
    """`_to_copy`: rounds where the type is narrower; the layout is the graph's."""
    if device is not None and torch.device(device).type != x.meta["val"].device.type:
        raise Declined("copies to another device")
    to = dtype_of(node)
    jumps = dtype_of(x).is_floating_point and not to.is_floating_point
    value = b.rounded(x, to) if jumps else b.operand(x, to)
    return b.ops.set(value) if to is dtype_of(x) else value


def cloned(b: Builder, node: Node, x: Any, *, memory_format: Any = None) -> Any:
    return b.ops.set(b.value(x))


POINTWISE: dict[Any, Lowering] = {
    # of numbers and their like
    aten.abs.default: unary("abs"),
    aten.neg.default: unary("neg"),
    aten.sign.default: sign,
    aten.floor.default: rounding("floor"),
    aten.ceil.default: rounding("ceil"),
    aten.round.default: rounding("round"),
    aten.trunc.default: rounding("trunc"),
    # of floating-point results
    aten.relu.default: unary("relu"),
    aten.reciprocal.default: unary("reciprocal"),
    aten.sqrt.default: unary("sqrt"),
    aten.rsqrt.default: unary("rsqrt"),
    aten.sigmoid.default: unary("sigmoid"),
    aten.exp.default: unary("exp"),
    aten.exp2.default: unary("exp2"),
    aten.expm1.default: unary("expm1"),
    aten.log.default: unary("log"),
    aten.log2.default: unary("log2"),
    aten.log10.default: unary("log10"),
    aten.log1p.default: unary("log1p"),
    aten.sin.default: unary("sin"),
    aten.cos.default: unary("cos"),
    aten.tan.default: unary("tan"),
    aten.asin.default: unary("asin"),
    aten.acos.default: unary("acos"),
    aten.atan.default: unary("atan"),
    aten.sinh.default: unary("sinh"),
    aten.cosh.default: unary("cosh"),
    aten.tanh.default: unary("tanh"),
    aten.asinh.default: unary("asinh"),
    aten.acosh.default: unary("acosh"),
    aten.atanh.default: unary("atanh"),
    aten.erf.default: unary("erf"),
    aten.erfc.default: unary("erfc"),
    aten.erfinv.default: unary("erfinv"),
    aten.lgamma.default: unary("lgamma"),
    # of two operands
    aten.add.Tensor: scaled_sum("add"),
    aten.add.Scalar: scaled_sum("add"),
    aten.sub.Tensor: scaled_sum("sub"),
    aten.sub.Scalar: scaled_sum("sub"),
    aten.mul.Tensor: binary("mul"),
    aten.mul.Scalar: binary("mul"),
    aten.maximum.default: binary("maximum"),
    aten.minimum.default: binary("minimum"),
    aten.atan2.default: binary("atan2"),
    aten.div.Tensor: divided,
    aten.div.Scalar: divided,
    aten.div.Tensor_mode: divided_and_rounded,
    aten.remainder.Tensor: remainder,
    aten.remainder.Scalar: remainder,
    aten.fmod.Tensor: fmod,
    aten.fmod.Scalar: fmod,
    aten.pow.Tensor_Scalar: power,
    aten.pow.Tensor_Tensor: power,
    aten.pow.Scalar: power,
    aten.clamp.default: clamp,
    aten.clamp.Tensor: clamp,
    # of bits
    aten.bitwise_not.default: bitwise_not,
    aten.bitwise_and.Tensor: bitwise("bitwise_and"),
    aten.bitwise_and.Scalar: bitwise("bitwise_and"),
    aten.bitwise_or.Tensor: bitwise("bitwise_or"),
    aten.bitwise_or.Scalar: bitwise("bitwise_or"),
    aten.bitwise_xor.Tensor: bitwise("bitwise_xor"),
    aten.bitwise_xor.Scalar: bitwise("bitwise_xor"),
    aten.__lshift__.Scalar: shifted("bitwise_left_shift"),
    aten.__rshift__.Scalar: shifted("bitwise_right_shift"),
    aten.bitwise_left_shift.Tensor_Scalar: shifted("bitwise_left_shift"),
    aten.bitwise_right_shift.Tensor_Scalar: shifted("bitwise_right_shift"),
    # copies
    aten._to_copy.default: converted,
    aten.clone.default: cloned,
}
