"""What moves elements and computes nothing, and tensors made of numbers alone. The shapes are the graph's own."""

import operator
from typing import Any

import torch
from torch.fx import Node

from aotkit.backends.fusion_definition.builder import Builder, Declined, dtype_of, shape_of
from aotkit.backends.fusion_definition.pointwise import Lowering, compute_type

aten = torch.ops.aten


def view(b: Builder, node: Node, x: Any, size: Any) -> Any:
    value, before, after = b.value(x), shape_of(x), shape_of(node)
    if before == after:
        return b.ops.set(value)
    if not after:
        return b.ops.squeeze(value, list(range(len(before))))
    if not before:
        return b.ops.broadcast(value, [True] * len(after))
    return b.ops.reshape(value, after)


def as_strided(b: Builder, node: Node, x: Any, size: Any, stride: Any, offset: Any = None) -> Any:
    """Where it is a view of all elements in their order."""
    before, after = x.meta["val"], node.meta["val"]
    whole = before.numel() == after.numel() and offset in (None, before.storage_offset())
    if not whole or not before.is_contiguous() or not after.is_contiguous():
        raise Declined("strides that are no view")
    return view(b, node, x, size)


def permute(b: Builder, node: Node, x: Any, dims: Any) -> Any:
    rank = len(shape_of(x))
    return b.ops.permute(b.value(x), [d % rank for d in dims]) if rank else b.ops.set(b.value(x))


def unsqueeze(b: Builder, node: Node, x: Any, dim: int) -> Any:
    rank = len(shape_of(node))
    return b.ops.broadcast(b.value(x), [d == dim % rank for d in range(rank)])


def squeeze(b: Builder, node: Node, x: Any, dims: Any = None) -> Any:
    shape = shape_of(x)
    given = range(len(shape)) if dims is None else [dims] if isinstance(dims, int) else dims
    ones = [d % len(shape) for d in given if shape and shape[d] == 1]
    return b.ops.squeeze(b.value(x), ones) if ones else b.ops.set(b.value(x))


def expand(b: Builder, node: Node, x: Any, size: Any, *, implicit: bool = False) -> Any:
    return _expanded(b, b.value(x), shape_of(x), shape_of(node))


def _expanded(b: Builder, value: Any, before: list[int], after: list[int]) -> Any:
    if before == after:
        return b.ops.set(value)
    return b.ops.broadcast_in_dim(value, after, list(range(len(after) - len(before), len(after))))


def unchanged(b: Builder, node: Node, x: Any) -> Any:
    return b.ops.set(b.value(x))


def _range(node: Node, dim: int, start: Any, end: Any) -> tuple[int, int]:
    first, last, _ = slice(start, end).indices(shape_of(node)[dim])
    return first, max(first, last)


def _grid(node: Node, dim: int, start: Any, end: Any, step: int) -> tuple[list[int], int]:
    """The shape in which every `step`th position along a dimension is one of a dimension more, and which one."""
    shape = shape_of(node)
    size = shape[dim]
    positions = range(size)[slice(start, end, step)]
    if size % step or len(positions) != size // step:
        raise Declined("a step that does not divide a dimension into equal parts")
    return [*shape[:dim], size // step, step, *shape[dim + 1 :]], positions[0]


def _slice(b: Builder, value: Any, shape: list[int], dim: int, first: int, last: int) -> Any:
    starts, ends = [0] * len(shape), list(shape)
    starts[dim], ends[dim] = first, last
    return b.ops.set(value) if ends == shape and not first else b.ops.slice(value, starts, ends)


def slice_(b: Builder, node: Node, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    shape = shape_of(x)
    dim %= len(shape)
    if step == 1:
        return _slice(b, b.value(x), shape, dim, *_range(x, dim, start, end))
    grid, first = _grid(x, dim, start, end, step)
    return b.ops.squeeze(_slice(b, b.ops.reshape(b.value(x), grid), grid, dim + 1, first, first + 1), [dim + 1])


def select(b: Builder, node: Node, x: Any, dim: int, index: int) -> Any:
    shape = shape_of(x)
    dim %= len(shape)
    index %= shape[dim]
    return b.ops.squeeze(_slice(b, b.value(x), shape, dim, index, index + 1), [dim])


def split(b: Builder, node: Node, x: Any, sizes: Any, dim: int = 0) -> Any:
    shape = shape_of(x)
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    ranges = [(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    return tuple(_slice(b, b.value(x), shape, dim % len(shape), *r) for r in ranges)


def getitem(b: Builder, node: Node, x: Any, index: int) -> Any:
    return b.part(x, index)


def cat(b: Builder, node: Node, tensors: Any, dim: int = 0) -> Any:
    dtype = compute_type(node)
    values = [b.operand(t, dtype) for t in tensors]
    return b.ops.cat(values, dim % len(shape_of(node))) if len(values) > 1 else b.ops.set(values[0])


def pad(b: Builder, node: Node, x: Any, widths: Any, value: Any = 0) -> Any:
    """Negative widths cut off."""
    dtype, shape = compute_type(node), shape_of(x)
    result = b.operand(x, dtype)
    for i in range(0, len(widths), 2):
        d = len(shape) - 1 - i // 2
        first, last = max(0, -widths[i]), shape[d] + min(0, widths[i + 1])
        result = _slice(b, result, shape, d, first, last)
        shape[d] = last - first
    added = [max(0, w) for w in widths]
    return b.ops.pad(result, added, b.constant(value, dtype)) if any(added) else result


def slice_scatter(
    b: Builder, node: Node, x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Any:
    shape, dtype = shape_of(x), compute_type(node)
    dim %= len(shape)
    value, part = b.operand(x, dtype), b.operand(source, dtype)
    if step == 1:
        return _replaced(b, value, shape, dim, _range(x, dim, start, end), part)
    grid, first = _grid(x, dim, start, end, step)
    part = b.ops.broadcast(part, [d == dim + 1 for d in range(len(grid))])
    value = _replaced(b, b.ops.reshape(value, grid), grid, dim + 1, (first, first + 1), part)
    return b.ops.reshape(value, shape)


def select_scatter(b: Builder, node: Node, x: Any, source: Any, dim: int, index: int) -> Any:
    shape, dtype = shape_of(x), compute_type(node)
    dim, index = dim % len(shape), index % shape[dim]
    part = b.ops.broadcast(b.operand(source, dtype), [d == dim for d in range(len(shape))])
    return _replaced(b, b.operand(x, dtype), shape, dim, (index, index + 1), part)


def _replaced(b: Builder, value: Any, shape: list[int], dim: int, where: tuple[int, int], part: Any) -> Any:
    """A value, of which a part along a dimension is another one."""
    first, last = where
    before = [_slice(b, value, shape, dim, 0, first)] if first else []
    after = [_slice(b, value, shape, dim, last, shape[dim])] if last < shape[dim] else []
    return b.ops.cat([*before, part, *after], dim) if before or after else b.ops.set(part)


def copy(b: Builder, node: Node, x: Any, source: Any, non_blocking: bool = False) -> Any:
    """The values of another tensor, in the shape and the type of the first."""
    if source.meta["val"].device != x.meta["val"].device:
        raise Declined("copies to another device")
    jumps = dtype_of(source).is_floating_point and not dtype_of(x).is_floating_point
    value = b.rounded(source, dtype_of(x)) if jumps else b.operand(source, dtype_of(x))
    return _expanded(b, value, shape_of(source), shape_of(node))


def filled(b: Builder, node: Node, value: Any, **options: Any) -> Any:
    if isinstance(value, Node):
        raise Declined("a tensor filled with a value that is computed")
    dtype = dtype_of(node)
    return b.ops.full(shape_of(node), b.constant(value, dtype), b.type(dtype))


def full(b: Builder, node: Node, size: Any, value: Any, **options: Any) -> Any:
    return filled(b, node, value)


def empty(b: Builder, node: Node, *args: Any, **options: Any) -> Any:
    """Zeros, as good as any other values."""
    return filled(b, node, 0)


def arange(b: Builder, node: Node, start: Any, end: Any, step: Any = 1, **options: Any) -> Any:
    dtype = dtype_of(node)
    if dtype.is_floating_point or not all(isinstance(x, int) for x in (start, step)):
        raise Declined("a range of floating-point numbers")
    length = b.constant(shape_of(node)[0], torch.int64)
    return b.ops.iota(length, b.constant(start, dtype), b.constant(step, dtype), b.type(dtype))


def iota(b: Builder, node: Node, length: Any, *, start: Any, step: Any, **options: Any) -> Any:
    return arange(b, node, start, None, step)


# Results share memory with the operand.
VIEWS: dict[Any, Lowering] = {
    aten.view.default: view,
    aten.as_strided.default: as_strided,
    aten.permute.default: permute,
    aten.unsqueeze.default: unsqueeze,
    aten.squeeze.default: squeeze,
    aten.squeeze.dim: squeeze,
    aten.squeeze.dims: squeeze,
    aten.expand.default: expand,
    aten.alias.default: unchanged,
    aten.slice.Tensor: slice_,
    aten.select.int: select,
    aten.split_with_sizes.default: split,
}

SHAPES: dict[Any, Lowering] = {
    **VIEWS,
    operator.getitem: getitem,
    aten.cat.default: cat,
    aten.constant_pad_nd.default: pad,
    aten.slice_scatter.default: slice_scatter,
    aten.select_scatter.default: select_scatter,
    aten.copy.default: copy,
    aten.full.default: full,
    aten.full_like.default: full,
    aten.scalar_tensor.default: filled,
    aten.empty_permuted.default: empty,
    aten.new_empty_strided.default: empty,
    aten.arange.start_step: arange,
    torch.ops.prims.iota.default: iota,
}
