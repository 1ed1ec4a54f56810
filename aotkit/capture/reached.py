"""What a walk has met, as a text that is the same in each process for which a function is the same.

A guard compares by identity, which ends with the process. Here functions are their code, classes the file that they are
written in, constants their values, and objects what was looked at of them. What cannot be told that way, or may be
something else in the next process, such as what `os` and `random` give, makes the text None.
"""

import functools
import hashlib
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from aotkit.capture import objects

# Of the standard library, what computes of its arguments alone.
SAME_IN_EACH_PROCESS = frozenset({
    "__future__", "abc", "builtins", "cmath", "collections", "contextlib", "copy", "dataclasses", "enum", "functools",
    "itertools", "math", "numbers", "operator", "_operator", "types", "typing", "warnings",
})  # fmt: skip
OTHER_IN_EACH_PROCESS = frozenset({
    "__import__", "breakpoint", "compile", "eval", "exec", "globals", "hash", "id", "input", "locals", "open", "vars",
})  # fmt: skip
# Nor is it told which operators of others than torch's `ops` leads to.
UNTOLD = OTHER_IN_EACH_PROCESS | {"ops"}


class Unknown(Exception):
    """Something cannot be told as text."""


class Reached:
    """The text, as it grows while a walk goes on; an object that is met again is told by its number."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._is_known = True

    def text(self) -> str | None:
        """The whole, or None if it cannot be told."""
        return "\n".join(self._lines) if self._is_known else None

    def constant(self, name: str, value: Any) -> None:
        """A constant, by its value."""
        self._tell(lambda: f"{name} = {_constant(value)}")

    def again(self, name: str, number: str) -> None:
        """What was met before."""
        self._tell(lambda: f"{name} is {number}")

    def met(self, name: str, number: str, value: Any, kind: objects.Kind) -> None:
        """An object, as far as it is not told by what is met of it."""
        self._tell(lambda: f"{name} is {number}: {kind} {_object(value, kind)}")

    def _tell(self, line: Callable[[], str]) -> None:
        if self._is_known:
            try:
                self._lines.append(line())
            except Unknown:
                self._is_known = False


def _constant(value: Any) -> str:
    if type(value) not in objects.EXACT:  # a subclass, whose repr is its own business
        raise Unknown
    return f"{type(value).__name__} {objects.constant_key(value)!r}"


def _object(value: Any, kind: objects.Kind) -> str:
    if (tell := _TELLING.get(kind)) is None:
        raise Unknown
    return tell(value)


def _of_tensor(value: Tensor) -> str:  # its kind is told with the other inputs
    return " ".join(vars(value))


def _of_function(value: types.FunctionType) -> str:
    return _named(value) if objects.is_trusted(value) else code_text(value.__code__)


def _of_module(value: nn.Module) -> str:
    state = vars(value)
    members = [[*state[group]] for group in ("_parameters", "_buffers", "_modules")]
    return f"{_named(type(value))} {value.training} {[*state]} {members}"


def _of_dict(value: dict[Any, Any]) -> str:
    keys = [_named(key) if isinstance(key, type) else _constant(key) for key in dict.keys(value)]
    return f"{_named(type(value))} {keys}"


def _of_sequence(value: Any) -> str:
    return f"{_named(type(value))} {len(value)}"


def _of_type(value: Any) -> str:
    state = objects.state_of(value)
    return f"{_named(type(value))} {[*state]}"


def _named(value: Any) -> str:
    """A class, a function or a module, by its name, and the code that stands under it."""
    module, name = objects.module_of(value), getattr(value, "__qualname__", getattr(value, "__name__", None))
    package = module.partition(".")[0]
    if not isinstance(name, str) or "<locals>" in name:
        raise Unknown
    if objects.is_trusted(value):
        is_same = package in ("torch", "functorch", "aotkit") or package in SAME_IN_EACH_PROCESS
        if not is_same or (package == "builtins" and name in OTHER_IN_EACH_PROCESS):
            raise Unknown
        return f"{module} {name}"
    classes = value.__mro__ if isinstance(value, type) else ()
    bases = [_named(base) for base in classes[1:]]
    return f"{module} {name} {_source_of(module)} {bases}"


def _source_of(module: str) -> str:
    """A digest of the file that a module of the user's is written in."""
    path = getattr(sys.modules.get(module), "__file__", None)
    if path is None:  # as in a notebook
        raise Unknown
    return _digest(path)


@functools.cache
def _digest(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        raise Unknown from None


@functools.cache
def code_text(code: types.CodeType) -> str:
    """A digest of all that decides what this code, and the functions defined in it, do."""
    return hashlib.sha256("\n".join(_parts_of(code)).encode()).hexdigest()


def _parts_of(code: types.CodeType) -> Iterator[str]:
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    if UNTOLD.intersection(code.co_names):
        raise Unknown
    where = code.co_filename, code.co_firstlineno, code.co_linetable.hex()  # which explanations show
    yield f"{code.co_qualname} {where} {names} {counts} {code.co_code.hex()} {code.co_exceptiontable.hex()}"
    for constant in code.co_consts:
        yield from _parts_of(constant) if isinstance(constant, types.CodeType) else _constants(constant)


def _constants(value: Any) -> Iterator[str]:
    if isinstance(value, tuple | frozenset):
        parts = [text for part in value for text in _constants(part)]
        yield f"{type(value).__name__} {parts if isinstance(value, tuple) else sorted(parts)}"
    else:
        yield _constant(value)


_TELLING: dict[str, Callable[[Any], str]] = {
    "tensor": _of_tensor, "function": _of_function, "module": _of_module, "dict": _of_dict, "sequence": _of_sequence,
    "object": _of_type, "partial": _of_type, "method": _of_type, "inert": _named, "namespace": _named,
    "method_in_c": _named,
}  # fmt: skip
