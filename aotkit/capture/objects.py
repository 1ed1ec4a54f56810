"""What kind of Python object something is, for the walk over what a function captures."""

import argparse
import array
import collections
import collections.abc
import contextvars
import io
import logging
import os
import random
import re
import sys
import threading
import types
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from aotkit.capture.constants import is_constant

# Code of these packages computes from its arguments alone, as far as a graph is concerned.
TRUSTED = frozenset(sys.stdlib_module_names) - {"__main__"} | {"torch", "functorch", "numpy", "aotkit"}
# Functions to compile that come with aotkit are written as users write them.
USER_CODE = "aotkit.testing."

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


def has_state(value: Any) -> bool:
    """Whether an object can have attributes."""
    return bool(slot_names(type(value))) or bool(state_of(value)) or hasattr(value, "__dict__")


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
