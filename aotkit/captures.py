"""What a function reads besides its arguments: closures, globals, attributes, the state of modules.

`find_captures` walks from the function (and from arguments that are objects) to every tensor and constant that its code
mentions. Tensors become inputs of the graph, so they are fetched again on every call; constants are baked into the
graph, so they are compared on every call. Both happen in one generated function, `Captures.fetch`.
"""

import array
import collections
import collections.abc
import dataclasses
import functools
import random
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from aotkit.code_names import UNSPELLED, attribute_names, global_names, methods
from aotkit.constants import CONSTANT_TYPES, constant_set, same_constant, same_constants
from aotkit.errors import TraceError
from aotkit.substitution import Slot

MOST_OBJECTS = 100_000
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_MODULE_STATE = ("training", "_parameters", "_buffers", "_modules", *_HOOKS)
_TRUSTED = frozenset(sys.stdlib_module_names) | {"torch", "functorch", "numpy", "aotkit"}


class EagerOnly(Exception):
    """The call has to run eagerly; the message says why."""


class Captures(NamedTuple):
    """Tensors that a function captures, in a fixed order, and how to find them again.

    Attributes:
        names: one for each tensor, `layer.weight` or the variable's name.
        fetch: from the roots to the tensors as they are now, or None when anything else that the function
            captures is no longer as it was.
    """

    names: Sequence[str]
    fetch: Callable[[Sequence[Any]], Sequence[Tensor] | None]


def find_captures(roots: Sequence[Any], root_names: Sequence[str]) -> tuple[Captures, "Walk"]:
    """Walk from `roots`; the walk holds the tensors and their slots as they are now, for tracing."""
    mentioned: set[str] = set()
    while True:
        walk = Walk(mentioned, len(roots))
        for i, (root, name) in enumerate(zip(roots, root_names, strict=True)):
            walk.visit(root, f"roots[{i}]", name, None)
        if walk.mentioned == mentioned:
            return Captures([name for name, _ in walk.tensors.values()], walk.compile()), walk
        mentioned = walk.mentioned


class Walk:
    """One pass over everything reachable, collecting tensors, slots, and the source of `fetch`."""

    def __init__(self, mentioned: set[str], roots: int) -> None:
        self._roots = roots
        self.filter = mentioned
        self.mentioned = set(mentioned)
        self.tensors: dict[int, tuple[str, Tensor]] = {}
        self.slots: list[Slot] = []  # in which the function finds values
        self.containers: list[tuple[str, Any]] = []
        self._variables: dict[int, str] = {}
        self._alive: list[Any] = []  # ids are unique only among living objects
        self._lines: list[str] = []
        self._globals: dict[str, Any] = {f.__name__: f for f in (same_constant, same_constants, constant_set)}
        self._packages: set[str] = set()

    # The visitor.

    def visit(self, value: Any, path: str, name: str, slot: tuple[Any, Any, bool] | None) -> None:
        if slot is not None:
            self.slots.append(Slot(name, *slot, value))
        if isinstance(value, CONSTANT_TYPES):
            self._constant(value, path)
            return
        if (variable := self._variables.get(id(value))) is not None:
            self._require(f"{path} is {variable}")
            return
        variable = self._variables[id(value)] = f"v{len(self._variables)}"
        if len(self._variables) > MOST_OBJECTS:
            raise TraceError(
                f"the function reaches more than {MOST_OBJECTS} objects through its closure, globals and attributes; "
                "pass what it needs as arguments, or use capture='dynamo'."
            )
        self._alive.append(value)
        self._lines.append(f"{variable} = {path}")
        self._kind(value)(value, variable, name)

    def _kind(self, value: Any) -> Callable[[Any, str, str], None]:
        match value:
            case Tensor():
                return self._tensor
            case nn.Module():
                return self._module
            case dict():
                return self._dict
            case list() | tuple() | collections.deque():
                return self._sequence
            case set() | frozenset():
                return self._set
            case types.FunctionType():
                return self._function
            case types.MethodType():
                return self._method
            case functools.partial():
                return self._partial
            case type() | types.ModuleType():
                return self._namespace
            case _ if hasattr(value, "__wrapped__") and callable(value):
                return self._wrapper
            case _ if dataclasses.is_dataclass(value):
                return self._dataclass
            case _ if package_of(type(value)) not in _TRUSTED and (hasattr(value, "__dict__") or _slots(type(value))):
                return self._object
            case _ if _is_inert(value):
                return self._opaque
            case _:
                return self._changeable

    def _constant(self, value: Any, path: str) -> None:
        c = self._bind(value)
        self._require(f"({path}) is {c} or same_constant({path}, {c})")

    def _opaque(self, value: Any, variable: str, name: str) -> None:
        self._require(f"{variable} is {self._bind(value)}")

    def _changeable(self, value: Any, variable: str, name: str) -> None:
        raise EagerOnly(f"it reads {name!r}, a {type(value).__name__}, whose contents cannot be compared")

    def _tensor(self, value: Tensor, variable: str, name: str) -> None:
        if isinstance(value, nn.UninitializedParameter | nn.UninitializedBuffer):
            raise EagerOnly(f"{name} is not initialised yet")
        # While another thread traces, a stand-in of another type is in this place: `fetch` must not return that.
        self._same_type(value, variable)
        self.tensors[id(value)] = (name, value)

    def _dict(self, value: dict[Any, Any], variable: str, name: str) -> None:
        self.containers.append((name, value))
        self._same_type(value, variable)
        self._require(f"same_constants({variable}, {self._bind(list(value))})")
        # A subclass may compute something else in its own `__getitem__`.
        get = "{}[{}]" if type(value).__getitem__ is dict.__getitem__ else "dict.__getitem__({}, {})"
        for key, item in dict.items(value):
            self.visit(item, get.format(variable, self._bind(key)), f"{name}[{key!r}]", (value, key, False))

    def _sequence(self, value: Sequence[Any], variable: str, name: str) -> None:
        mutable = not isinstance(value, tuple)
        if mutable:
            self.containers.append((name, value))
        self._same_type(value, variable)
        self._require(f"len({variable}) == {len(value)}")
        for i, item in enumerate(value):
            self.visit(item, f"{variable}[{i}]", f"{name}[{i}]", (value, i, False) if mutable else None)

    def _set(self, value: Any, variable: str, name: str) -> None:
        self.containers.append((name, value))
        self._same_type(value, variable)
        self._require(f"constant_set({variable}) == {self._bind(constant_set(value))}")

    def _module(self, value: nn.Module, variable: str, name: str) -> None:
        prefix = f"{name}." if name else ""
        state = vars(value)
        self.containers.append((name, state))
        self._same_type(value, variable)
        self._require(f"{variable}.training is {value.training}")
        for group in ("_parameters", "_buffers", "_modules"):
            members = state[group]
            self.containers.append((name, members))
            self._require(f"list({variable}.{group}) == {self._bind(list(members))}")
            for key, member in members.items():
                self.visit(member, f"{variable}.{group}[{key!r}]", f"{prefix}{key}", (members, key, False))
        for hooks in _HOOKS:
            if state[hooks]:
                self.visit(state[hooks], f"{variable}.{hooks}", f"{prefix}{hooks}", None)
            else:
                self._require(f"not {variable}.{hooks}")
        self._attributes(value, variable, name)

    def _object(self, value: Any, variable: str, name: str) -> None:
        self._same_type(value, variable)
        for key in _slots(type(value)):
            if hasattr(value, key):
                self.visit(getattr(value, key), f"{variable}.{key}", f"{name}.{key}", (value, key, True))
            else:
                self._require(f"not hasattr({variable}, {key!r})")
        if hasattr(value, "__dict__"):
            self.containers.append((name, vars(value)))
        self._attributes(value, variable, name)

    def _dataclass(self, value: Any, variable: str, name: str) -> None:
        self._same_type(value, variable)
        for field in dataclasses.fields(value):
            held = getattr(value, field.name)
            self.visit(held, f"{variable}.{field.name}", f"{name}.{field.name}", (value, field.name, True))
        if package_of(type(value)) not in _TRUSTED:
            self._attributes(value, variable, name)

    def _attributes(self, value: Any, variable: str, name: str) -> None:
        """Attributes that some code mentions, from the object and, if they are data, from its class."""
        cls = type(value)
        if package_of(cls) not in _TRUSTED:
            self._packages.add(package_of(cls))
        for method in methods(cls, self.filter):
            self._code(method)
        prefix = f"{name}." if name else ""
        state = getattr(value, "__dict__", {})
        everything = bool(self.filter & UNSPELLED) and package_of(cls) not in _TRUSTED
        for key in list(state):
            if key not in _MODULE_STATE and (key in self.filter or everything):
                self.visit(state[key], f"{variable}.__dict__[{key!r}]", f"{prefix}{key}", (state, key, False))
        for key in sorted(self.filter & set(dir(cls)) - set(state)):
            held = _class_data(cls, key)
            if isinstance(held, (*CONSTANT_TYPES, Tensor, list, dict, tuple)):
                self.visit(held, f"{variable}.{key}", f"{prefix}{key}", None)

    def _function(self, value: types.FunctionType, variable: str, name: str) -> None:
        if package_of(value) in _TRUSTED:
            return
        is_root = not self._packages
        if is_root:
            self._packages.add(package_of(value))
        self._require(f"{variable}.__code__ is {self._bind(value.__code__)}")
        self._code(value)
        for i, free in enumerate(value.__code__.co_freevars):
            cell = value.__closure__[i]  # type: ignore[index]
            try:
                held = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            self.visit(held, f"{variable}.__closure__[{i}].cell_contents", free, (cell, "cell_contents", True))
        if not is_root:  # the root's own defaults are bound as arguments
            self.visit(value.__defaults__, f"{variable}.__defaults__", f"{name}.__defaults__", None)
            self.visit(value.__kwdefaults__, f"{variable}.__kwdefaults__", f"{name}.__kwdefaults__", None)
        self._read_globals(value, variable)

    def _read_globals(self, function: types.FunctionType, variable: str) -> None:
        own = package_of(function) in self._packages
        for key in sorted(global_names(function.__code__) & function.__globals__.keys()):
            held = function.__globals__[key]
            # Other packages keep caches in global containers; those are not part of what their functions compute.
            if own or not isinstance(held, dict | list | set):
                self.visit(held, f"{variable}.__globals__[{key!r}]", key, (function.__globals__, key, False))

    def _method(self, value: types.MethodType, variable: str, name: str) -> None:
        self._same_type(value, variable)
        owner = value.__self__
        if not isinstance(owner, nn.Module):
            name = f"{name}.self" if name else "self"
        self.visit(owner, f"{variable}.__self__", name, None)
        self.visit(value.__func__, f"{variable}.__func__", name, None)

    def _partial(self, value: "functools.partial[Any]", variable: str, name: str) -> None:
        self._same_type(value, variable)
        for part in ("func", "args", "keywords"):
            self.visit(getattr(value, part), f"{variable}.{part}", name, None)

    def _wrapper(self, value: Any, variable: str, name: str) -> None:
        self.visit(value.__wrapped__, f"{variable}.__wrapped__", name, None)

    def _namespace(self, value: Any, variable: str, name: str) -> None:
        """A class or a Python module of the user's: data and functions in it that code mentions."""
        if package_of(value) not in self._packages:
            return
        for key in sorted(self.filter & vars(value).keys()):
            held = vars(value)[key]
            if isinstance(held, staticmethod):
                held = held.__func__
            if isinstance(held, (*CONSTANT_TYPES, Tensor, types.FunctionType, nn.Module)):
                self.visit(held, f"{variable}.{key}", f"{name}.{key}", None)

    # Building the source of `fetch`.

    def _code(self, function: types.FunctionType) -> None:
        self.mentioned |= attribute_names(function.__code__)

    def _bind(self, value: Any) -> str:
        name = f"c{len(self._globals)}"
        self._globals[name] = value
        return name

    def _require(self, condition: str) -> None:
        self._lines.append(f"if not ({condition}): return None")

    def _same_type(self, value: Any, variable: str) -> None:
        self._require(f"type({variable}) is {self._bind(type(value))}")

    def compile(self) -> Callable[[Sequence[Any]], Sequence[Tensor] | None]:
        found = ", ".join(self._variables[i] for i in self.tensors)
        self._lines.insert(0, f"if len(roots) != {self._roots}: return None")
        body = "\n        ".join(self._lines)
        source = (
            f"def fetch(roots):\n    try:\n        {body}\n        return [{found}]\n"
            "    except (AttributeError, IndexError, KeyError, TypeError, ValueError):\n        return None\n"
        )
        exec(compile(source, "<aotkit captures>", "exec"), self._globals)
        return self._globals["fetch"]  # type: ignore[no-any-return]


def package_of(obj: Any) -> str:
    """The top-level package in which a class, function or module is defined."""
    module = obj.__name__ if isinstance(obj, types.ModuleType) else getattr(obj, "__module__", None)
    return (module or "__main__").partition(".")[0]


def _slots(cls: type) -> list[str]:
    """Attributes that objects of this class keep outside of `__dict__`."""
    declared = (vars(base).get("__slots__", ()) for base in cls.__mro__ if package_of(base) not in _TRUSTED)
    names = [name for slots in declared for name in ([slots] if isinstance(slots, str) else slots)]
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _is_inert(value: Any) -> bool:
    """Whether an object that cannot be looked into matters by its identity alone: a built-in function, a logger."""
    if isinstance(value, collections.abc.Iterator | bytearray | memoryview | array.array | random.Random):
        return False
    return package_of(type(value)) in _TRUSTED and package_of(type(value)) != "numpy"


def _class_data(cls: type, key: str) -> Any:
    for base in cls.__mro__:
        if key in vars(base):
            return vars(base)[key] if package_of(base) not in _TRUSTED else NotImplemented
    return NotImplemented
