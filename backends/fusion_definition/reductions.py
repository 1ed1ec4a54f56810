"""Reductions: over given dimensions, or over all."""

import math
from typing import Any

import torch
from torch.fx import Node

from aotkit.backends.fusion_definition.builder import Builder, Declined, computed_in, dtype_of, shape_of
from aotkit.backends.fusion_definition.pointwise import Lowering, number_type

aten = torch.ops.aten


def _dims(x: Node, dim: Any) -> list[int]:
    rank = len(shape_of(x))
    if dim is None or dim == []:
        return list(range(rank))
    return [d % rank for d in ([dim] if isinstance(dim, int) else dim)] if rank else []


def _reduced(b: Builder, name: str, value: Any, dims: list[int], keepdim: bool) -> Any:
    return getattr(b.ops, name)(value, dims=dims, keepdim=keepdim) if dims else b.ops.set(value)


def reduced(name: str) -> Lowering:
    """In the type of the result."""

    def lower(b: Builder, node: Node, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        return _reduced(b, name, b.operand(x, number_type(node)), _dims(x, dim), keepdim)

    return lower


def mean(b: Builder, node: Node, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    to, dims = computed_in(dtype_of(node)), _dims(x, dim)
    total = _reduced(b, "sum", b.operand(x, to), dims, keepdim)
    return b.ops.truediv(total, b.constant(_count(x, dims), to))


def _count(x: Node, dims: list[int]) -> int:
    return math.prod(shape_of(x)[d] for d in dims)


def any_(b: Builder, node: Node, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Whether one is not zero: the largest of 0 and 1."""
    ones = b.ops.cast(b.rounded(x, torch.bool), b.type(torch.int32))
    return b.ops.ne(_reduced(b, "max", ones, _dims(x, dim), keepdim), b.constant(0, torch.int32))


def variance(name: str) -> Lowering:
    """By Welford's algorithm; `var_mean` gives two tensors."""

    def lower(b: Builder, node: Node, x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
        dims = _dims(x, dim)
        correction = 1 if correction is None else correction
        if correction != int(correction) or not 0 <= correction < _count(x, dims) or not dims:
            raise Declined(f"the variance of {_count(x, dims)} values with the correction {correction}")
        return getattr(b.ops, name)(
            b.operand(x, computed_in(dtype_of(x))), dims=dims, correction=int(correction), keepdim=keepdim
        )

    return lower


REDUCTIONS: dict[Any, Lowering] = {
    aten.sum.dim_IntList: reduced("sum"),
    aten.prod.default: reduced("prod"),
    aten.prod.dim_int: reduced("prod"),
    aten.amax.default: reduced("max"),
    aten.amin.default: reduced("min"),
    aten.mean.default: mean,
    aten.mean.dim: mean,
    aten.any.default: any_,
    aten.any.dim: any_,
    aten.any.dims: any_,
    aten.var.correction: variance("var"),
    aten.var_mean.correction: variance("var_mean"),
}
