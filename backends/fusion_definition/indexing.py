"""One element of a row, chosen by its index, as arithmetic: nvFuser's own indexing does not check the range.

So a loss that gathers, and its gradient that scatters, are part of the kernel of the rows.
"""

import math
from typing import Any

import torch
from torch.fx import Node

from aotkit.backends.fusion_definition.builder import Builder, Declined, computed_in, dtype_of, shape_of
from aotkit.backends.fusion_definition.pointwise import Lowering

aten = torch.ops.aten


def gather(b: Builder, node: Node, x: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    """NaN for an index out of range, for which ATen ends the process."""
    chosen, dim = _chosen(b, x, dim, index)
    dtype = computed_in(dtype_of(x))
    if not dtype.is_floating_point:
        raise Declined("gathering integers")
    value = b.ops.where(chosen, b.operand(x, dtype), b.constant(0, dtype))
    found = b.ops.sum(value, dims=[dim], keepdim=True)
    at = b.operand(index, torch.int64)
    inside = b.ops.logical_and(
        b.ops.ge(at, b.constant(0, torch.int64)), b.ops.lt(at, b.constant(shape_of(x)[dim], torch.int64))
    )
    return b.ops.where(inside, found, b.constant(math.nan, dtype))


def scatter(b: Builder, node: Node, x: Any, dim: int, index: Any, source: Any) -> Any:
    """Nothing for an index out of range, for which ATen ends the process."""
    chosen, old, new = _scattered(b, x, dim, index, source)
    return b.ops.where(chosen, new, old)


def scatter_add(b: Builder, node: Node, x: Any, dim: int, index: Any, source: Any) -> Any:
    """Nothing for an index out of range, for which ATen ends the process."""
    chosen, old, new = _scattered(b, x, dim, index, source)
    return b.ops.where(chosen, b.ops.add(old, new), old)


def _scattered(b: Builder, x: Any, dim: int, index: Any, source: Any) -> tuple[Any, Any, Any]:
    if isinstance(source, Node) and shape_of(source) != shape_of(index):
        raise Declined("scattering part of a tensor")
    dtype = computed_in(dtype_of(x))
    return _chosen(b, x, dim, index)[0], b.operand(x, dtype), b.operand(source, dtype)


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


INDEXING: dict[Any, Lowering] = {
    aten.gather.default: gather,
    aten.scatter.value: scatter,
    aten.scatter.src: scatter,
    aten.scatter_add.default: scatter_add,
}
