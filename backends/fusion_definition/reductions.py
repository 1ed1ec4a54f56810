"""Reductions, over given dimensions or over all; and one element of a row, chosen by its index, as arithmetic.

nvFuser's own indexing does not check the range. So a loss that gathers, and its gradient that scatters, are part of the
kernel of the rows.
"""

import math
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from aotkit.backends.fusion_definition.builder import Builder, Declined, shape_of
from aotkit.backends.fusion_definition.pointwise import Lowering, compute_type, number_type

aten = torch.ops.aten


def _dims(x: Node, dim: Any) -> list[int]:
    rank = len(shape_of(x))
    if dim is None or dim == []:
        return list(range(rank))
    return [d % rank for d in ([dim] if isinstance(dim, int) else dim)] if rank else []


def _reduced(b: Builder, name: str, value: Any, dims: list[int], keepdim: bool) -> Any:
    return getattr(b.ops, name)(value, dims=dims, keepdim=keepdim) if dims else b.ops.set(value)


def reduced(
    name: str, b: Builder, node: Node, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """In the type of the result."""
    return _reduced(b, name, b.operand(x, number_type(node)), _dims(x, dim), keepdim)


def mean(b: Builder, node: Node, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    to, dims = compute_type(node), _dims(x, dim)
    total = _reduced(b, "sum", b.operand(x, to), dims, keepdim)
    return b.ops.truediv(total, b.constant(_count(x, dims), to))


def _count(x: Node, dims: list[int]) -> int:
    return math.prod(shape_of(x)[d] for d in dims)


def any_(b: Builder, node: Node, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Whether one is not zero: the largest of 0 and 1."""
    ones = b.ops.cast(b.rounded(x, torch.bool), b.type(torch.int32))
    return b.ops.ne(_reduced(b, "max", ones, _dims(x, dim), keepdim), b.constant(0, torch.int32))


def variance(
    name: str, b: Builder, node: Node, x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    """By Welford's algorithm; `var_mean` gives two tensors."""
    dims = _dims(x, dim)
    correction = 1 if correction is None else correction
    if correction != int(correction) or not 0 <= correction < _count(x, dims) or not dims:
        raise Declined(f"the variance of {_count(x, dims)} values with the correction {correction}")
    value = b.operand(x, compute_type(x))
    return getattr(b.ops, name)(value, dims=dims, correction=int(correction), keepdim=keepdim)


def gather_one(b: Builder, node: Node, x: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    """One element of each row. NaN for an index out of range, for which ATen ends the process."""
    chosen, dim = _chosen(b, x, dim, index)
    dtype = compute_type(x)
    if not dtype.is_floating_point:
        raise Declined("gathering integers")
    value = b.ops.where(chosen, b.operand(x, dtype), b.constant(0, dtype))
    found = b.ops.sum(value, dims=[dim], keepdim=True)
    at, size = b.operand(index, torch.int64), shape_of(x)[dim]
    is_inside = b.ops.logical_and(b.ops.ge(at, b.constant(0, torch.int64)), b.ops.lt(at, b.constant(size, torch.int64)))
    return b.ops.where(is_inside, found, b.constant(math.nan, dtype))


def scattered(b: Builder, node: Node, x: Any, dim: int, index: Any, source: Any, *, add: bool = False) -> Any:
    """Nothing for an index out of range, for which ATen ends the process."""
    if isinstance(source, Node) and shape_of(source) != shape_of(index):
        raise Declined("scattering part of a tensor")
    dtype = compute_type(x)
    chosen, _ = _chosen(b, x, dim, index)
    old, new = b.operand(x, dtype), b.operand(source, dtype)
    return b.ops.where(chosen, b.ops.add(old, new) if add else new, old)


def _chosen(b: Builder, x: Node, dim: int, index: Node) -> tuple[Any, int]:
    """Where the position along `dim` is the index."""
    shape = shape_of(x)
    if not shape:
        raise Declined("a tensor without dimensions")
    dim %= len(shape)
    if shape_of(index) != [1 if d == dim else size for d, size in enumerate(shape)]:
        raise Declined("more than one index for each row")
    i64 = torch.int64
    positions = b.ops.iota(b.constant(shape[dim], i64), b.constant(0, i64), b.constant(1, i64), b.type(i64))
    positions = b.ops.broadcast(positions, [d != dim for d in range(len(shape))])
    return b.ops.eq(positions, b.operand(index, i64)), dim


REDUCTIONS: dict[Any, Lowering] = {
    aten.sum.default: partial(reduced, "sum"),
    aten.sum.dim_IntList: partial(reduced, "sum"),
    aten.prod.default: partial(reduced, "prod"),
    aten.prod.dim_int: partial(reduced, "prod"),
    aten.amax.default: partial(reduced, "max"),
    aten.amin.default: partial(reduced, "min"),
    aten.mean.default: mean,
    aten.mean.dim: mean,
    aten.any.default: any_,
    aten.any.dim: any_,
    aten.any.dims: any_,
    aten.var.correction: partial(variance, "var"),
    aten.var_mean.correction: partial(variance, "var_mean"),
    aten.scatter.value: scattered,
    aten.scatter.src: scattered,
    aten.scatter_add.default: partial(scattered, add=True),
}
