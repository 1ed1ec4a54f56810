"""Digests of code, of files and of texts: the same in each process where those are the same."""

import functools
import hashlib
import os
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from aotkit.capture.objects import constant_key


@functools.cache
def digest_of(code: types.CodeType) -> str:
    """A digest of all that decides what this code, and the functions defined in it, do."""
    return digest_of_texts(_lines_of(code))


def _lines_of(code: types.CodeType) -> Iterator[str]:
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    where = code.co_filename, code.co_firstlineno, code.co_linetable.hex()  # which explanations show
    yield f"{code.co_qualname} {where} {names} {counts} {code.co_code.hex()} {code.co_exceptiontable.hex()}"
    yield from map(_constant, code.co_consts)


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return digest_of(value)
    if isinstance(value, frozenset):
        return f"frozenset {sorted(map(_constant, value))}"
    if isinstance(value, tuple):
        return f"tuple {[*map(_constant, value)]}"
    return str(constant_key(value))


def digest_of_file(path: str) -> str | None:
    """A digest of a file; None if it cannot be read."""
    try:
        return _of_written(path, os.stat(path).st_mtime_ns)
    except OSError:
        return None


@functools.cache
def _of_written(path: str, written: int) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def digest_of_texts(texts: Iterable[str]) -> str:
    """A digest of texts in their order."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()
