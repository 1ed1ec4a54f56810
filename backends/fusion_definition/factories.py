"""Tensors made of numbers alone."""

from typing import Any

import torch
from torch.fx import Node

from aotkit.backends.fusion_definition.builder import Builder, Declined, dtype_of, shape_of
from aotkit.backends.fusion_definition.pointwise import Lowering

aten = torch.ops.aten


def _filled(b: Builder, node: Node, value: Any) -> Any:
    if isinstance(value, Node):
        raise Declined("a tensor filled with a value that is computed")
    dtype = dtype_of(node)
    return b.ops.full(shape_of(node), b.constant(value, dtype), b.type(dtype))


def full(b: Builder, node: Node, size: Any, value: Any, **options: Any) -> Any:
    return _filled(b, node, value)


def scalar_tensor(b: Builder, node: Node, value: Any, **options: Any) -> Any:
    return _filled(b, node, value)


def empty(b: Builder, node: Node, *args: Any, **options: Any) -> Any:
    """Zeros, as good as any other values."""
    return _filled(b, node, 0)


def arange(b: Builder, node: Node, start: Any, end: Any, step: Any = 1, **options: Any) -> Any:
    dtype = dtype_of(node)
    if dtype.is_floating_point or not all(isinstance(x, int) for x in (start, step)):
        raise Declined("a range of floating-point numbers")
    length = b.constant(shape_of(node)[0], torch.int64)
    return b.ops.iota(length, b.constant(start, dtype), b.constant(step, dtype), b.type(dtype))


FACTORIES: dict[Any, Lowering] = {
    aten.full.default: full,
    aten.full_like.default: full,
    aten.scalar_tensor.default: scalar_tensor,
    aten.empty_permuted.default: empty,
    aten.new_empty_strided.default: empty,
    aten.arange.start_step: arange,
}
