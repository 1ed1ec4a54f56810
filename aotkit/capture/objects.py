"""What kind of Python object something is: a constant that graphs are made for, what can be looked into, or neither."""

import argparse
import array
import collections
import collections.abc
import contextvars
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import io
import logging
import os
import pathlib
import random
import re
import struct
import sys
import threading
import types
import weakref
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

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


# Code of these packages computes from its arguments alone, as far as a graph is concerned.
TRUSTED = frozenset(sys.stdlib_module_names) - {"__main__"} | {"torch", "functorch", "numpy", "aotkit"}
# Functions to compile that come with aotkit are written as users write them.
USER_CODE = "aotkit.testing."
COMPILED = ("aotkit.compiled.function", "CompiledFunction")

# Objects of the standard library that are nothing but their attributes.
RECORDS = (
    types.SimpleNamespace, argparse.Namespace, collections.UserDict, collections.UserList, collections.ChainMap,
)  # fmt: skip

# Objects that matter by their identity alone.
INERT = (
    types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType, types.MethodDescriptorType,
    types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType, logging.Logger,
    logging.LoggerAdapter, re.Pattern, weakref.ref, type(threading.Lock()), type(threading.RLock()),
)  # fmt: skip


# Objects of the standard library whose contents change and cannot be compared.
CHANGEABLE = (
    collections.abc.Iterator, collections.abc.MappingView, types.MappingProxyType, bytearray, memoryview, array.array,
    random.Random, contextvars.Context, contextvars.Token, type(os.environ), io.IOBase,
)  # fmt: skip


def module_of(obj: Any) -> str:
    """The name of the module in which a class or function is defined, or that a module has."""
    if isinstance(obj, types.FunctionType):  # `functools.wraps` copies another function's `__module__`
        module = obj.__globals__.get("__name__")
    else:
        module = obj.__name__ if isinstance(obj, types.ModuleType) else getattr(obj, "__module__", None)
    return str(module or "__main__")


def package_of(obj: Any) -> str:
    """The top-level package in which a class, function or module is defined."""
    return module_of(obj).partition(".")[0]


def is_trusted(obj: Any) -> bool:
    """Whether a class, function or module is not the user's."""
    module = module_of(obj)
    return module.partition(".")[0] in TRUSTED and not module.startswith(USER_CODE)


def is_inert(value: Any) -> bool:
    """Whether an object that cannot be looked into matters by its identity alone: a built-in function, a logger."""
    if isinstance(value, INERT) or type(value) is object:
        return True
    package = package_of(type(value))
    if package == "torch":
        return not isinstance(value, torch.optim.Optimizer)
    return (
        package in sys.stdlib_module_names
        and not isinstance(value, CHANGEABLE)
        and not getattr(value, "__dict__", None)
    )


def slot_names(cls: type) -> list[str]:
    """Attributes that objects of this class keep outside of `__dict__`."""
    declared = (vars(base).get("__slots__", ()) for base in cls.__mro__ if not is_trusted(base))
    names = [name for slots in declared for name in ([slots] if isinstance(slots, str) else slots)]
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def state_of(value: Any) -> dict[str, Any]:
    """An object's attributes; {} if it has no `__dict__`."""
    try:
        return object.__getattribute__(value, "__dict__")  # type: ignore[no-any-return]
    except AttributeError:
        return {}


Kind = Literal[
    "tensor", "module", "dict", "sequence", "set", "function", "method", "method_in_c", "partial", "namespace",
    "cached", "context_variable", "compiled", "inert", "object", "changeable",
]  # fmt: skip


def kind_of(value: Any) -> Kind:
    """How to look into what is no constant."""
    match value:
        case Tensor():
            return "tensor"
        case nn.Module():
            return "module"
        case dict():
            return "dict"
        case list() | tuple() | collections.deque():
            return "sequence"
        case set() | frozenset():
            return "set"
        case types.FunctionType():
            return "function"
        case types.MethodType():
            return "method"
        case types.BuiltinMethodType(__self__=type() as owner) if not is_trusted(owner):
            return "method_in_c"
        case functools.partial():
            return "partial"
        case type() | types.ModuleType():
            return "namespace"
        case functools._lru_cache_wrapper():
            return "cached"
        case contextvars.ContextVar():
            return "context_variable"
    if dataclasses.is_dataclass(value):
        return "object"
    if (type(value).__module__, type(value).__name__) == COMPILED:
        return "compiled"
    if is_inert(value):
        return "inert"
    is_users = not is_trusted(type(value)) and (bool(slot_names(type(value))) or hasattr(value, "__dict__"))
    return "object" if is_users or isinstance(value, RECORDS) else "changeable"


def is_key(value: Any) -> bool:
    """Whether a member of a set or a key of a dict can be compared: a constant, or a class."""
    return is_constant(value) or isinstance(value, type)


def data_of_class(cls: type, names: Sequence[str]) -> list[tuple[type, str, Any]]:
    """(base, name, value) of those attributes of a user's class, and its bases, that are plain data."""
    functions = (types.FunctionType, staticmethod, classmethod, property)
    found = []
    for name in names:
        base = next((b for b in cls.__mro__ if name in vars(b)), object)
        held = vars(base).get(name)
        special = name.startswith("__") or isinstance(held, functions) or hasattr(held, "func")
        if name in vars(base) and not is_trusted(base) and not special:
            found.append((base, name, held))
    return found
