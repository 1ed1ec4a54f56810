"""What a walk has met, as a text that is the same in each process for which a function is the same.

A guard compares by identity, which ends with the process. Here functions are their code, classes the file that they are
written in, constants their values, and objects what was looked at of them. What cannot be told that way, or may be
something else in the next process, such as what `os` and `random` give, makes the text None.
"""

import builtins
import dis
import functools
import operator
import sys
import types
from collections.abc import Callable, Hashable, Set
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from aotkit.capture import code_names, objects
from aotkit.capture.digests import digest_of, digest_of_file

# Of the standard library, what computes of its arguments alone.
SAME_IN_EACH_PROCESS = frozenset({
    "__future__", "abc", "builtins", "cmath", "collections", "contextlib", "copy", "dataclasses", "enum", "functools",
    "itertools", "math", "numbers", "operator", "_operator", "types", "typing", "warnings",
})  # fmt: skip
OTHER_IN_EACH_PROCESS = frozenset({
    "__import__", "breakpoint", "compile", "eval", "exec", "globals", "hash", "id", "input", "locals", "open", "vars",
})  # fmt: skip
# What torch tells of the process, and where.
OF_THE_PROCESS = frozenset({
    "current_device", "default_generator", "device_count", "distributed", "from_file", "get_rank", "get_rng_state",
    "get_worker_info", "get_world_size", "hub", "initial_seed", "load",
})  # fmt: skip
PARTS_OF_THE_PROCESS = tuple(
    f"torch.{name}" for name in ("distributed", "hub", "multiprocessing", "random", "serialization", "utils.data")
)
# Nor is it told which operators of others than torch's `ops` leads to, and which attributes computed names.
UNTOLD = OTHER_IN_EACH_PROCESS | OF_THE_PROCESS | code_names.UNSPELLED - {"asdict", "astuple"} | {"ops"}
SAME_PACKAGES = SAME_IN_EACH_PROCESS | {"torch", "functorch", "aotkit"}


class Unknown(Exception):
    """Something cannot be told as text."""


class Reached:
    """The text, as it grows while a walk goes on; an object that is met again is told by its number.

    Args:
        is_told: whether anybody will ask for it.
    """

    def __init__(self, *, is_told: bool) -> None:
        self._lines: list[str] = []
        self._is_known = is_told

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

    def untold(self) -> None:
        """Something is read that is not met."""
        self._is_known = False

    def class_with(self, cls: type, mentioned: Set[str]) -> None:
        """A class of which code that mentions these names is run."""
        if self._is_known and code_names.has_hidden_code(cls, mentioned):
            self.untold()

    def global_of_python(self, name: str) -> None:
        """A name that is no global of a module: of Python's own, unless the program has given it another meaning."""
        held = getattr(builtins, name, None) if self._is_known else None
        if held is not None and type(held) not in objects.EXACT and objects.module_of(held) != "builtins":
            self.untold()

    def names(self, mentioned: Set[str]) -> None:
        """What the code mentions: whatever of torch has these names is to be torch's own."""
        if not self._is_known:
            return
        if _is_replaced(torch.Tensor, mentioned, set()) or _is_replaced(torch, {*mentioned, "nn", "functional"}, set()):
            self.untold()

    def _tell(self, line: Callable[[], str]) -> None:
        if self._is_known:
            try:
                self._lines.append(line())
            except Unknown:
                self._is_known = False


def key_text(key: Hashable) -> str | None:
    """The key of arguments, `arguments.Arguments.key`; None if it tells less than a function may read of them."""
    with suppress(Unknown):
        return _key(key)
    return None


def _key(key: Hashable) -> str:
    if isinstance(key, tuple):
        return f"({', '.join(map(_key, key))})"
    if isinstance(key, type) and key not in objects.EXACT and key is not object:
        if not objects.is_trusted(key):  # such as a named tuple, whose methods nobody has looked into
            raise Unknown
        return _named(key)
    return key.__name__ if isinstance(key, type) else _constant(key)


def _is_replaced(space: Any, mentioned: Set[str], seen: set[int]) -> bool:
    """Whether one of these names is somebody else's code, put into a class or module of torch's, or below that."""
    seen.add(id(space))
    for name in mentioned & vars(space).keys():
        held = vars(space)[name]
        if isinstance(held, types.ModuleType):
            is_part = held.__name__.startswith("torch.") and id(held) not in seen
            if is_part and _is_replaced(held, mentioned, seen):
                return True
        elif callable(held) and not objects.is_trusted(held if isinstance(held, _WITH_NAMES) else type(held)):
            return True
    return False


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
    # Around the `__repr__` that it generates, which is met, too.
    if objects.module_of(value) in ("dataclasses", "reprlib") and value.__qualname__.endswith(".__repr__"):
        return "__repr__ of a dataclass"
    return _named(value) if objects.is_trusted(value) else code_text(value.__code__)


def _of_module(value: nn.Module) -> str:
    state = vars(value)
    members = [[*state[group]] for group in ("_parameters", "_buffers", "_modules")]
    # How hooks are called: with keywords, always, for all gradients.
    hooks = [len(held) if isinstance(held, dict) else held for key, held in state.items() if "hook" in key]
    return f"{_named(type(value))} {value.training} {[*state]} {members} {hooks}"


def _of_dict(value: dict[Any, Any]) -> str:
    keys = [_named(key) if isinstance(key, type) else _constant(key) for key in dict.keys(value)]
    return f"{_named(type(value))} {keys}"


def _of_sequence(value: Any) -> str:
    return f"{_named(type(value))} {len(value)} {getattr(value, 'maxlen', '')}"


def _of_type(value: Any) -> str:
    state = objects.state_of(value)
    return f"{_named(type(value))} {[*state]}"


def _of_method(value: types.MethodType) -> str:  # its parts are met
    return "method"


def _named(value: Any) -> str:
    """A class, a function or a module, by its name, and the code that stands under it."""
    if isinstance(value, _OF_AN_OWNER):
        return _of_owner(value)
    name = getattr(value, "__qualname__", getattr(value, "__name__", None))
    if not isinstance(name, str) or "<locals>" in name:
        raise Unknown
    if objects.is_trusted(value):
        return _of_library(value, name)
    module = objects.module_of(value)
    # A class of classes, and a module that is more than its names, may make attributes up.
    if not objects.is_trusted(type(value)) or (isinstance(value, types.ModuleType) and "__getattr__" in vars(value)):
        raise Unknown
    classes = value.__mro__ if isinstance(value, type) else ()
    bases = [_named(base) for base in classes[1:]]
    return f"{module} {name} {_source_of(module)} {bases}"


def _of_owner(value: Any) -> str:
    """What is written in C, by its name in a module or class: bound to anything else, it may hold that."""
    owners = getattr(value, "__self__", None), getattr(value, "__objclass__", None), _module_of_name(value)
    owner = next((owner for owner in owners if owner is not None), None)
    if not isinstance(owner, type | types.ModuleType) or (isinstance(owner, types.ModuleType) and not is_same(owner)):
        raise Unknown
    if isinstance(owner, types.ModuleType) and owner is builtins and value.__name__ in OTHER_IN_EACH_PROCESS:
        raise Unknown
    of = f"{owner.__module__} {owner.__qualname__}" if isinstance(owner, type) else owner.__name__
    return f"{of if objects.is_trusted(owner) else _named(owner)} {value.__name__}"


def _module_of_name(value: Any) -> types.ModuleType | None:
    return sys.modules.get(str(getattr(value, "__module__", None)))


def is_same(value: Any) -> bool:
    """Whether a class, function or module of a library computes the same in each process."""
    module = objects.module_of(value)
    return module.partition(".")[0] in SAME_PACKAGES and not f"{module}.".startswith(
        tuple(f"{part}." for part in PARTS_OF_THE_PROCESS)
    )


def _of_library(value: Any, name: str) -> str:
    """By its name, if that leads to it: a wrapper has the name of what it wraps, and holds more than that."""
    is_module = isinstance(value, types.ModuleType)
    module = str(name if is_module else getattr(value, "__module__", None))
    found: Any = sys.modules.get(module)
    with suppress(AttributeError):
        found = found if is_module else operator.attrgetter(name)(found)
    if found is not value or not is_same(value) or module.partition(".")[0] not in SAME_PACKAGES:
        raise Unknown
    return f"{module} {name}"


def _source_of(module: str) -> str:
    """A digest of the file that a module of the user's is written in."""
    path = getattr(sys.modules.get(module), "__file__", None)
    if path is None:  # as in a notebook
        raise Unknown
    if (found := digest_of_file(path)) is None:
        raise Unknown
    return found


@functools.cache
def code_text(code: types.CodeType) -> str:
    """A digest of all that decides what this code, and the functions defined in it, do."""
    if any(UNTOLD.intersection(c.co_names) or not _imports_the_same(c) for c in code_names.nested(code)):
        raise Unknown
    return digest_of(code)


def _imports_the_same(code: types.CodeType) -> bool:
    """Whether what code imports when it runs is known though it may not be loaded yet."""
    instructions = [*dis.get_instructions(code)]
    levels = [before.argval for before, i in zip(instructions[:-1], instructions[2:], strict=False) if _imports(i)]
    names = [i.argval for i in instructions if _imports(i)]
    return not any(levels) and {name.partition(".")[0] for name in names} <= SAME_PACKAGES


def _imports(instruction: dis.Instruction) -> bool:
    return instruction.opname == "IMPORT_NAME"


_OF_AN_OWNER = (
    types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType, types.MethodDescriptorType,
    types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType,
)  # fmt: skip
_WITH_NAMES = (types.FunctionType, type)
_TELLING: dict[str, Callable[[Any], str]] = {
    "tensor": _of_tensor, "function": _of_function, "module": _of_module, "dict": _of_dict, "sequence": _of_sequence,
    "object": _of_type, "partial": _of_type, "method": _of_method, "inert": _named, "namespace": _named,
    "method_in_c": _named,
}  # fmt: skip
