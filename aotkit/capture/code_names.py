"""Which globals and attributes a piece of Python code mentions, read from its bytecode."""

import dis
import functools
import sys
import types
from collections.abc import Iterator, Set
from typing import Any

import torch
from torch import nn

from aotkit.capture.objects import is_trusted

# Names through which code can read any attribute without spelling it.
UNSPELLED = frozenset(
    {"getattr", "vars", "__dict__", "__getattribute__", "attrgetter", "asdict", "astuple", "getmembers", "eval", "exec"}
)

# What autograd calls of a user's `torch.autograd.Function`.
OF_AUTOGRAD = frozenset({"forward", "setup_context", "backward", "vjp", "jvp", "vmap"})


@functools.cache
def global_names(code: types.CodeType) -> frozenset[str]:
    """Global variables that this code and the functions defined in it read or write."""
    ops = ("LOAD_GLOBAL", "STORE_GLOBAL", "LOAD_NAME")
    return frozenset(i.argval for c in nested(code) for i in dis.get_instructions(c) if i.opname in ops)


def imported_modules(code: types.CodeType) -> list[types.ModuleType]:
    """Modules that this code imports when it runs, as far as they are loaded."""
    names = (i.argval for c in nested(code) for i in dis.get_instructions(c) if i.opname == "IMPORT_NAME")
    return [sys.modules[name] for name in names if name in sys.modules]


@functools.cache
def attribute_names(code: types.CodeType) -> frozenset[str]:
    """Attributes that this code may read: every name it uses, and every string in it that could be names."""
    found: set[str] = set()
    for c in nested(code):
        found.update(c.co_names)
        found.update(_spelled(c.co_consts))
    return frozenset(found)


def _spelled(constant: Any) -> Iterator[str]:
    if isinstance(constant, str):
        yield from (part for part in constant.split(".") if part.isidentifier())
    elif isinstance(constant, tuple | frozenset):
        for item in constant:
            yield from _spelled(item)


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code object and those of the functions, lambdas and comprehensions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested(constant)


def is_implicit(cls: type, name: str) -> bool:
    """Whether Python or autograd calls this function of a class although no code names it."""
    return name.startswith("__") or (issubclass(cls, torch.autograd.Function) and name in OF_AUTOGRAD)


def methods(cls: type, mentioned: Set[str]) -> Iterator[tuple[type, str, str, types.FunctionType]]:
    """The methods of `cls` that code mentioning these names may run: special ones, `forward`, and those named.

    Yields (base class, name, path from the class's attribute to the function, function).
    """
    for base in cls.__mro__:
        if base in (nn.Module, object):
            continue
        for name, attribute in list(vars(base).items()):
            implicit = name == "forward" or (name.startswith("__") and name not in ("__init__", "__new__"))
            if implicit or name in mentioned:
                for path, function in functions_of(attribute):
                    yield base, name, path, function


def has_hidden_code(cls: type, mentioned: Set[str]) -> bool:
    """Whether code that mentions these names may run code of the user's in `cls` that `functions_of` does not find."""
    held = (
        value
        for base in cls.__mro__
        if not is_trusted(base)
        for name, value in vars(base).items()
        if name == "forward" or name in mentioned or name.startswith("__")
    )
    return any(_is_code(value) and not any(functions_of(value)) for value in held)


def _is_code(attribute: Any) -> bool:
    if isinstance(attribute, staticmethod | classmethod | property) or hasattr(attribute, "func"):
        return True
    return callable(attribute) and not isinstance(attribute, type | nn.Module)


def functions_of(attribute: Any) -> Iterator[tuple[str, types.FunctionType]]:
    """(path, function) of the Python functions in a class attribute."""
    match attribute:
        case types.FunctionType():
            yield "", attribute
        case staticmethod() | classmethod():
            yield from ((f".__func__{path}", f) for path, f in functions_of(attribute.__func__))
        case property():
            for accessor in ("fget", "fset"):
                yield from ((f".{accessor}{path}", f) for path, f in functions_of(getattr(attribute, accessor)))
        case functools.cached_property():
            yield from ((f".func{path}", f) for path, f in functions_of(attribute.func))
