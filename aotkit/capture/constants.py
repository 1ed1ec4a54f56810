"""Values that tracing bakes into a graph, and when two of them are the same."""

import datetime
import decimal
import enum
import fractions
import pathlib
import struct
import sys
from collections.abc import Collection, Hashable, Iterable
from typing import Any

import torch

EXACT = frozenset({
    type(None), bool, int, float, complex, str, bytes, range, slice, type(Ellipsis), type(NotImplemented), torch.Size,
    torch.dtype, torch.device, torch.layout, torch.memory_format, decimal.Decimal, fractions.Fraction,
    datetime.date, datetime.datetime, datetime.timedelta, pathlib.PosixPath, pathlib.WindowsPath,
})  # fmt: skip


def is_constant(value: Any) -> bool:
    """Whether a value never changes and can be compared, so that a graph may be made for it."""
    if type(value) in EXACT:
        return True
    if isinstance(value, enum.Enum):
        return is_constant(value.value)
    if isinstance(value, bool | int | float | complex | str | bytes):  # a subclass, such as numpy.float64
        return not getattr(value, "__dict__", None)
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)


def constant_key(value: Any) -> Hashable:
    """Equal exactly for constants that a graph cannot tell apart: 1 and True differ, so do 0.0 and -0.0."""
    if isinstance(value, float):
        return type(value), struct.pack("d", value)
    if isinstance(value, complex):
        return type(value), struct.pack("dd", value.real, value.imag)
    if isinstance(value, slice):
        return slice, constant_key(value.start), constant_key(value.stop), constant_key(value.step)
    return type(value), value


def same_constant(a: Any, b: Any) -> bool:
    """Whether two constants are equal to a graph."""
    return type(a) is type(b) and constant_key(a) == constant_key(b)


def same_constants(a: Collection[Any], b: Collection[Any]) -> bool:
    """Whether two collections hold equal constants in the same order."""
    return len(a) == len(b) and all(x is y or same_constant(x, y) for x, y in zip(a, b, strict=True))


def constant_set(values: Iterable[Any]) -> set[Hashable]:
    """A set that is equal to another only if their constants are."""
    return {constant_key(value) for value in values}
