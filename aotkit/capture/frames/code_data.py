"""A code object as data that JSON takes, and back."""

from types import CodeType
from typing import Any

import torch

from aotkit.capture.frames.telling import Untold
from aotkit.torch_private.tensors import dtype_named

# The arguments of `CodeType`, by its attributes.
FIELDS = (
    "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_nlocals", "co_stacksize", "co_flags", "co_code",
    "co_consts", "co_names", "co_varnames", "co_filename", "co_name", "co_qualname", "co_firstlineno", "co_linetable",
    "co_exceptiontable", "co_freevars", "co_cellvars",
)  # fmt: skip
PLAIN = (type(None), bool, int, float, str)
MANY: dict[str, Any] = {"tuple": tuple, "frozenset": frozenset, "Size": torch.Size}
NAMED: dict[str, Any] = {"device": torch.device, "dtype": dtype_named}


def code_data(code: CodeType) -> dict[str, Any]:
    """The data of a code object.

    Raises:
        Untold: it holds what is no constant.
    """
    return {field: _data(getattr(code, field)) for field in FIELDS}


def code_of(data: dict[str, Any]) -> CodeType:
    """The code object of such data."""
    return CodeType(*(_value(data[field]) for field in FIELDS))


def _data(value: Any) -> Any:
    kind = type(value).__name__
    if type(value) in PLAIN:
        return value
    if isinstance(value, CodeType):
        return [kind, code_data(value)]
    if isinstance(value, bytes):
        return [kind, value.hex()]
    if type(value) in MANY.values():
        return [kind, [*map(_data, value)]]
    if isinstance(value, torch.device | torch.dtype):
        return [kind, str(value)]
    raise Untold(f"code with a {kind} in it")


def _value(data: Any) -> Any:
    if not isinstance(data, list):
        return data
    kind, held = data
    if kind == "code":
        return code_of(held)
    if kind == "bytes":
        return bytes.fromhex(held)
    return NAMED[kind](held) if kind in NAMED else MANY[kind](map(_value, held))
