"""Python values as texts: the same in each process where the values are the same, and in no other."""

import enum
import os
import sys
import types
from typing import Any

import torch

from aotkit.capture.code_names import functions_of
from aotkit.capture.digests import digest_of, digest_of_texts
from aotkit.capture.objects import EXACT, constant_key

# What is written in C.
IN_C = (
    types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType, types.MethodDescriptorType,
    types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType,
)  # fmt: skip
_DYNAMO = os.path.join(os.path.dirname(torch.__file__), "_dynamo", "")


class Untold(Exception):
    """A value cannot be told as text."""


class Telling:
    """Texts of values, each class looked into once.

    Not to be kept for long: somebody may put another method into a class.

    Attributes:
        codes: digests of all code that was told.
    """

    def __init__(self) -> None:
        self.codes: set[str] = set()
        self._classes: dict[type, str] = {}

    def of(self, value: Any) -> str:
        """The text of a value.

        Raises:
            Untold: it has none, such as an object with a state of its own.
        """
        if type(value) in EXACT:
            return str(constant_key(value))
        if isinstance(value, enum.Enum):
            return f"{self.of(type(value))} {value.name}"
        if isinstance(value, type):
            return f"{value.__module__} {value.__qualname__} {self._of_class(value)}"
        if isinstance(value, types.FunctionType):
            return f"{value.__module__} {value.__qualname__} {self._of_function(value)}"
        if isinstance(value, types.CodeType):
            self.codes.add(found := digest_of(value))
            return found
        if isinstance(value, types.ModuleType) and sys.modules.get(value.__name__) is value:
            return f"module {value.__name__}"
        if isinstance(value, IN_C) and (owner := _owner(value)) is not None:
            return f"{type(value).__name__} {value.__name__} of {owner.__name__}"
        if type(value) in (tuple, list, frozenset):
            parts = [self.of(part) for part in value]
            return f"{type(value).__name__} {sorted(parts) if type(value) is frozenset else parts}"
        raise Untold(f"a {type(value).__name__}")

    def _of_function(self, function: types.FunctionType) -> str:
        """Digests of its code, and of that of functions in its closure, as where decorators have wrapped it.

        What else is in a closure Dynamo looks at where it reads it.
        """
        found: dict[types.FunctionType, str] = {}
        waiting = [function]
        while waiting:
            if (one := waiting.pop()) not in found:
                is_dynamos = one.__code__.co_filename.startswith(_DYNAMO)  # around methods of `nn.Module`, once in use
                found[one] = "" if is_dynamos else self.of(one.__code__)
                waiting += filter(_is_function, map(_held, one.__closure__ or ()))
        return " ".join(filter(None, found.values()))

    def _of_class(self, cls: type) -> str:
        """A digest of the methods of a class, and of those that it inherits."""
        if cls not in self._classes:
            lines = [self.of(base) for base in cls.__mro__[1:]]
            for name, held in sorted(vars(cls).items()):
                if name.startswith("___"):  # marks of Dynamo's
                    continue
                codes = [f"{path} {self._of_function(function)}" for path, function in functions_of(held)]
                lines.append(f"{name} {type(held).__qualname__} {codes}")
            self._classes[cls] = digest_of_texts(lines)
        return self._classes[cls]


def _held(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def _is_function(value: Any) -> bool:
    return isinstance(value, types.FunctionType)


def _owner(value: Any) -> type | types.ModuleType | None:
    """The class or module that something written in C belongs to; None if it is bound to anything else."""
    module = sys.modules.get(str(getattr(value, "__module__", None)))
    for owner in (getattr(value, "__objclass__", None), getattr(value, "__self__", None), module):
        if isinstance(owner, type | types.ModuleType):
            return owner
        if owner is not None and getattr(module, value.__name__, None) is not value:
            return None
    return None
