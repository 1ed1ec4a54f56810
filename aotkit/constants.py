"""Values that tracing bakes into a graph, and when two of them are the same."""

import enum
import struct
from collections.abc import Collection, Hashable, Iterable
from typing import Any

import torch

CONSTANT_TYPES = (
    type(None), bool, int, float, complex, str, bytes, range, slice, type(Ellipsis), enum.Enum, torch.Size,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


def constant_key(value: Any) -> Hashable:
    """Equal exactly for constants that a graph cannot tell apart: 1 and True differ, so do 0.0 and -0.0."""
    if isinstance(value, float):
        return float, struct.pack("d", value)
    if isinstance(value, complex):
        return complex, struct.pack("dd", value.real, value.imag)
    if isinstance(value, slice):
        return slice, constant_key(value.start), constant_key(value.stop), constant_key(value.step)
    return type(value), value


def same_constant(a: Any, b: Any) -> bool:
    return type(a) is type(b) and constant_key(a) == constant_key(b)


def same_constants(a: Collection[Any], b: Collection[Any]) -> bool:
    return len(a) == len(b) and all(x is y or same_constant(x, y) for x, y in zip(a, b, strict=True))


def constant_set(values: Iterable[Any]) -> set[Hashable]:
    return {constant_key(value) for value in values}
