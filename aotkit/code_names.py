"""Which globals and attributes a piece of Python code mentions, read from its bytecode."""

import dis
import functools
import types
from collections.abc import Iterator
from typing import Any

from torch import nn

# Names through which code can read any attribute without spelling it.
UNSPELLED = frozenset({"getattr", "vars", "__dict__", "__getattribute__"})


@functools.cache
def global_names(code: types.CodeType) -> frozenset[str]:
    """Global variables that this code and the functions defined in it read or write."""
    ops = ("LOAD_GLOBAL", "STORE_GLOBAL", "LOAD_NAME")
    return frozenset(i.argval for c in nested(code) for i in dis.get_instructions(c) if i.opname in ops)


@functools.cache
def attribute_names(code: types.CodeType) -> frozenset[str]:
    """Attributes that this code may read: every name it uses, and every string in it that could be a name."""
    found: set[str] = set()
    for c in nested(code):
        found.update(c.co_names)
        found.update(s for s in c.co_consts if isinstance(s, str) and s.isidentifier())
    return frozenset(found)


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code object and those of the functions, lambdas and comprehensions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested(constant)


def methods(cls: type, mentioned: set[str]) -> Iterator[types.FunctionType]:
    """The methods of `cls` that code mentioning these names may run: special ones, `forward`, and those named."""
    for base in cls.__mro__:
        if base in (nn.Module, object):
            continue
        for name, attribute in vars(base).items():
            implicit = name == "forward" or (name.startswith("__") and name not in ("__init__", "__new__"))
            if implicit or name in mentioned:
                yield from _functions_of(attribute)


def _functions_of(attribute: Any) -> Iterator[types.FunctionType]:
    match attribute:
        case types.FunctionType():
            yield attribute
        case staticmethod() | classmethod():
            yield from _functions_of(attribute.__func__)
        case property():
            for accessor in (attribute.fget, attribute.fset):
                yield from _functions_of(accessor)
        case functools.cached_property():
            yield from _functions_of(attribute.func)
