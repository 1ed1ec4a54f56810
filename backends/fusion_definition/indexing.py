"""Elements that are read by index. NaN is where an index is out of range, for which ATen ends the process."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from aotkit.backends.fusion_definition.builder import Builder, Declined, dtype_of, shape_of
from aotkit.backends.fusion_definition.pointwise import Lowering, compute_type
from aotkit.backends.fusion_definition.reductions import gather_one

aten = torch.ops.aten
INTEGERS = (torch.int64, torch.int32)


def embedding(b: Builder, node: Node, weight: Node, indices: Node, *options: Any, **others: Any) -> Any:
    return _taken(b, weight, {0: _index(b, indices)}, 0)


def index(b: Builder, node: Node, x: Node, indices: Sequence[Node | None]) -> Any:
    """A negative index counts from the end."""
    found = {d: _index(b, i, shape_of(x)[d]) for d, i in enumerate(indices) if i is not None}
    first, *_, last = [*found, *found]
    return _taken(b, x, found, first if last - first < len(found) else 0)


def index_select(b: Builder, node: Node, x: Node, dim: int, indices: Node) -> Any:
    shape = shape_of(x)
    if not shape or not shape_of(indices):
        raise Declined("a tensor without dimensions")
    return _taken(b, x, {dim % len(shape): _index(b, indices)}, dim % len(shape))


def gather(b: Builder, node: Node, x: Node, dim: int, indices: Node, *, sparse_grad: bool = False) -> Any:
    shape, wanted = shape_of(x), shape_of(indices)
    if not b.indexes or not shape or wanted[dim % len(shape)] == 1:
        return gather_one(b, node, x, dim, indices)
    dim %= len(shape)
    if [n for d, n in enumerate(shape) if d != dim] != [n for d, n in enumerate(wanted) if d != dim]:
        raise Declined("gathering from a part of a tensor")
    at, dtype = _index(b, indices), _type(b, x)
    return _or_nan(b, b.ops.take_along(b.operand(x, dtype), at, dim), dtype, {at: shape[dim]})


def _taken(b: Builder, x: Node, indices: Mapping[int, Any], place: int) -> Any:
    dtype, rank = _type(b, x), len(shape_of(x))
    found = b.ops.take(b.operand(x, dtype), indices, place)
    after = rank - len(indices) - place  # dimensions behind those of the indices
    sizes = {_before(b, at, after): shape_of(x)[d] for d, at in indices.items()}
    return _or_nan(b, found, dtype, sizes)


def _or_nan(b: Builder, found: Any, dtype: torch.dtype, indices: Mapping[Any, int]) -> Any:
    i64 = torch.int64
    for at, size in indices.items():
        inside = b.ops.logical_and(b.ops.ge(at, b.constant(0, i64)), b.ops.lt(at, b.constant(size, i64)))
        found = b.ops.where(inside, found, b.constant(math.nan, dtype))
    return found


def _before(b: Builder, value: Any, dimensions: int) -> Any:
    """A value with so many dimensions more, behind its own."""
    return b.ops.broadcast(value, [*[False] * value.ndim, *[True] * dimensions]) if dimensions else value


def _type(b: Builder, x: Node) -> torch.dtype:
    if not b.indexes:
        raise Declined("elements by index, of which ATen checks the range")
    if not (dtype := compute_type(x)).is_floating_point:
        raise Declined("integers by index")
    return dtype


def _index(b: Builder, indices: Node, size: int = 0) -> Any:
    """Positions of 64 bits.

    Args:
        size: what negative ones are counted from.
    """
    if dtype_of(indices) not in INTEGERS:
        raise Declined(f"{dtype_of(indices)} as index")
    i64 = torch.int64
    found = b.operand(indices, i64)
    if not size:
        return found
    wrapped = b.ops.add(found, b.constant(size, i64))
    return b.ops.where(b.ops.lt(found, b.constant(0, i64)), wrapped, found)


INDEXING: dict[Any, Lowering] = {
    aten.embedding.default: embedding,
    aten.index.Tensor: index,
    aten.index_select.default: index_select,
    aten.gather.default: gather,
}
