"""What a function reads besides its arguments, through closures, globals, attributes and the state of modules.

Tensors become inputs of the graph, so they are fetched again on every call; constants are baked into the graph, so
they are compared on every call. Both happen in one generated function, the guard.
"""

import collections
import contextvars
import dataclasses
import functools
import types
from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor, nn

from aotkit.capture import code_names, higher_order, objects
from aotkit.capture.guards import HOOKS, MODULE_STATE, Guard, GuardSource
from aotkit.capture.places import MISSING, Attribute, ContextVariable, Item, Place, Slot
from aotkit.capture.reached import Reached
from aotkit.capture.refusals import EagerOnly
from aotkit.errors import TraceError
from aotkit.keep import is_kept
from aotkit.text import is_installed

MOST_OBJECTS = 100_000
# Code is read instruction by instruction: so many functions take some 50 ms.
MOST_PLAIN_FUNCTIONS = 200
# Of every module, besides MODULE_STATE: read by name, if at all.
BOOKKEEPING = frozenset(vars(nn.Module()))
TENSOR_ATTRIBUTES = frozenset(dir(nn.Parameter))
_PLAIN_CONTAINERS = (dict, list, tuple, collections.OrderedDict, collections.defaultdict, collections.deque)
Codes = Collection[types.CodeType]


class Walk:
    """One pass over everything reachable.

    Args:
        mentioned: names that the code is known to mention.
        followed: the code to look into; None: all of the user's.
        fitted: the function that is given all that it has defaults for.
        plain: look into nothing but the user's own code, and not much of that.

    Attributes:
        mentioned: names that the code found so far mentions.
        tensors: id -> (name, tensor), in order.
        slots: the places in which the function finds values.
        containers: named dicts, lists and sets that it could change.
        caches: functions with `functools.cache`.
        generators: random generators.
        unfollowed: the code of functions that were not looked into.
        reached: what it has met, as text.
    """

    def __init__(
        self, mentioned: Set[str], source: GuardSource, followed: Codes | None, fitted: Any, plain: bool
    ) -> None:
        self._filter, self.mentioned = mentioned, set(mentioned)
        self.tensors: dict[int, tuple[str, Tensor]] = {}
        self.slots: list[Slot] = []
        self.containers: list[tuple[str, Any]] = []
        self.caches: list[Any] = []
        self.generators: list[torch.Generator] = []
        self.unfollowed: set[types.CodeType] = set()
        self._followed = followed
        self._variables: dict[int, str] = {}
        self._numbers: dict[int, str] = {}
        self._methods: set[tuple[type, str, str]] = set()
        self._alive: list[Any] = []  # ids are unique only among living objects
        self._source, self._fitted, self._plain = source, fitted, plain
        self.reached = Reached(is_told=is_kept())
        self._plain_functions = 0

    def compile(self, arguments: Mapping[str, Tensor]) -> Guard:
        """The function that compares, and fetches the tensors in these variables and those found."""
        tensors = {**arguments, **{self._variables[i]: tensor for i, (_, tensor) in self.tensors.items()}}
        if self._filter - TENSOR_ATTRIBUTES or self._filter & code_names.UNSPELLED:
            self._source.require_no_attributes([name for name, tensor in tensors.items() if not vars(tensor)])
        return self._source.compile(list(tensors))

    @property
    def modules(self) -> list[nn.Module]:
        """Those that it has come to."""
        return [value for value in self._alive if isinstance(value, nn.Module)]

    def require_plain(self, function: types.FunctionType) -> None:
        """Refuse functions that an installed library brings, and too many of them, where only plain code is wanted."""
        if not self._plain or objects.is_trusted(function):
            return
        if is_installed(function.__code__.co_filename):
            raise EagerOnly(f"{function.__qualname__!r} is code of the library {objects.package_of(function)!r}")
        self._plain_functions += 1
        if self._plain_functions > MOST_PLAIN_FUNCTIONS:
            raise EagerOnly(f"it reaches more than {MOST_PLAIN_FUNCTIONS} functions")

    def require_no_recurrence(self, module: nn.Module, name: str) -> None:
        """Refuse layers that tracing would take apart into operations for each step, where that is not asked for.

        TorchDynamo leaves them to eager, whose kernels walk all steps. An LSTM of 32 steps took minutes to compile, and
        a step then 1.6 times as long.
        """
        if self._plain and isinstance(module, nn.RNNBase):
            raise EagerOnly(f"{name or type(module).__name__!r} is a recurrent layer, which tracing would unroll")

    def visit(self, value: Any, path: str, name: str, place: Place | None) -> None:
        """Visit what the expression `path` stands for; `place` is where it is kept."""
        if place is not None:
            self.slots.append(Slot(name, place, value))
        if objects.is_constant(value):
            self._source.require_constant(path, value)
            self.reached.constant(name, value)
            return
        if (variable := self._variables.get(id(value))) is not None:
            self._source.require(f"{path} is {variable}")
            self.reached.again(name, self._numbers[id(value)])
            if value is self._fitted:  # what reaches it once more may call it with its defaults
                self._fitted = None
                self._defaults(value, variable, name)
            return
        variable = self._variables[id(value)] = self._source.assign(path)
        number = self._numbers[id(value)] = f"#{len(self._numbers)}"
        if len(self._variables) > MOST_OBJECTS:
            raise TraceError(
                f"the function reaches more than {MOST_OBJECTS} objects through its closure, globals and attributes; "
                "pass what it needs as arguments, or use capture='dynamo'."
            )
        self._alive.append(value)
        kind = objects.kind_of(value)
        self.reached.met(name, number, value, kind)
        try:
            getattr(self, f"_{kind}")(value, variable, name)
        except RecursionError:
            raise EagerOnly(f"{name!r} is nested too deeply to look into") from None

    # One method for each of `objects.Kind`.

    def _inert(self, value: Any, variable: str, name: str) -> None:
        if isinstance(value, torch.Generator):
            self.generators.append(value)
        self._source.require(f"{variable} is {self._source.bind(value)}")

    def _changeable(self, value: Any, variable: str, name: str) -> None:
        raise EagerOnly(f"it reads {name!r}, a {type(value).__name__}, whose contents cannot be compared")

    def _tensor(self, value: Tensor, variable: str, name: str) -> None:
        if isinstance(value, nn.UninitializedParameter | nn.UninitializedBuffer):
            raise EagerOnly(f"{name} is not initialised yet", final=True)
        self.tensors[id(value)] = (name, value)
        if vars(value):
            self._state(value, variable, name, everything=False)

    def _dict(self, value: dict[Any, Any], variable: str, name: str) -> None:
        if not all(map(objects.is_key, dict.keys(value))):
            self._changeable(value, variable, name)
        self.containers.append((name, value))
        self._source.require_type(variable, value)
        self._source.require_keys(variable, list(dict.keys(value)))
        # A subclass may compute something else in its own `__getitem__`.
        get = "{}[{}]" if type(value).__getitem__ is dict.__getitem__ else "dict.__getitem__({}, {})"
        for key, item in list(dict.items(value)):
            self.visit(item, get.format(variable, self._source.bind(key)), f"{name}[{key!r}]", Item(value, key))
        if type(value) not in _PLAIN_CONTAINERS:
            self._attributes(value, variable, name)

    def _sequence(self, value: Sequence[Any], variable: str, name: str) -> None:
        if mutable := not isinstance(value, tuple):
            self.containers.append((name, value))
        self._source.require_type(variable, value)
        self._source.require(f"len({variable}) == {len(value)}")
        for i, item in enumerate(value):
            self.visit(item, f"{variable}[{i}]", f"{name}[{i}]", Item(value, i) if mutable else None)
        if type(value) not in _PLAIN_CONTAINERS:
            self._attributes(value, variable, name)

    def _set(self, value: Any, variable: str, name: str) -> None:
        if not all(map(objects.is_key, value)):
            self._changeable(value, variable, name)
        self.containers.append((name, value))
        self._source.require_type(variable, value)
        self._source.require(f"constant_set({variable}) == {self._source.bind(objects.constant_set(value))}")

    def _module(self, value: nn.Module, variable: str, name: str) -> None:
        self.require_no_recurrence(value, name)
        if isinstance(value, torch.jit.ScriptModule):
            raise EagerOnly(f"{name or type(value).__name__!r} is compiled by torch.jit")
        prefix = f"{name}." if name else ""
        state = vars(value)
        found = self._source.require_module(variable, value)
        for group in ("_parameters", "_buffers", "_modules"):
            members = state[group]
            self.containers.append((name, members))
            for key, member in members.items():
                self.visit(member, found[group, key], f"{prefix}{key}", Item(members, key))
        for hooks in filter(state.get, HOOKS):
            self.visit(state[hooks], f"{variable}.{hooks}", f"{prefix}{hooks}", None)
        self._attributes(value, variable, name)

    def _object(self, value: Any, variable: str, name: str) -> None:
        self._source.require_type(variable, value)
        fields = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else ()
        for key in dict.fromkeys((*objects.slot_names(type(value)), *fields)):
            if hasattr(value, key):
                self.visit(getattr(value, key), f"{variable}.{key}", f"{name}.{key}", Attribute(value, key))
            else:
                self._source.require(f"not hasattr({variable}, {key!r})")
        self._attributes(value, variable, name)

    def _compiled(self, value: Any, variable: str, name: str) -> None:
        """A function compiled by aotkit: inside of a trace it runs the function that it wraps."""
        self.visit(value.__wrapped__, f"{variable}.__wrapped__", name, None)

    def _cached(self, value: "functools._lru_cache_wrapper[Any]", variable: str, name: str) -> None:
        self._inert(value, variable, name)
        self.caches.append(value)
        self.visit(value.__wrapped__, f"{variable}.__wrapped__", name, None)

    def _context_variable(self, value: "contextvars.ContextVar[Any]", variable: str, name: str) -> None:
        """What it holds in the context of a call, and its default if that is nothing."""
        self._inert(value, variable, name)
        place = ContextVariable(value)
        self.visit(place.get(), f"{variable}.get({self._source.bind(MISSING)})", name, place)
        if (default := place.default()) is not MISSING:
            self.visit(default, f"{variable}.get()", name, None)

    def _partial(self, value: "functools.partial[Any]", variable: str, name: str) -> None:
        self._source.require_type(variable, value)
        for part in ("func", "args", "keywords"):
            self.visit(getattr(value, part), f"{variable}.{part}", name, None)

    def _method(self, value: types.MethodType, variable: str, name: str) -> None:
        self._source.require_type(variable, value)
        owner = value.__self__
        if not isinstance(owner, nn.Module):
            name = f"{name}.self" if name else "self"
        self.visit(owner, f"{variable}.__self__", name, None)
        self.visit(value.__func__, f"{variable}.__func__", name, None)

    def _method_in_c(self, value: types.BuiltinMethodType, variable: str, name: str) -> None:
        """Of a user's class, whose methods it may call: `apply` of an autograd function is one in torch 2.14."""
        self._inert(value, variable, name)
        self.visit(value.__self__, f"{variable}.__self__", name, None)

    def _function(self, value: types.FunctionType, variable: str, name: str) -> None:
        if objects.is_trusted(value):
            self._inert(value, variable, name)
            higher_order.refuse(value)
            for i, cell in enumerate(value.__closure__ or ()):  # a decorator of torch's around the user's function
                if isinstance(cell.cell_contents, types.FunctionType) and not objects.is_trusted(cell.cell_contents):
                    self.visit(cell.cell_contents, f"{variable}.__closure__[{i}].cell_contents", name, None)
            return
        self._source.require(f"{variable}.__code__ is {self._source.bind(value.__code__)}")
        if self._followed is not None and value.__code__ not in self._followed:
            self.unfollowed.add(value.__code__)
            return
        self.require_plain(value)
        self.mentioned |= code_names.attribute_names(value.__code__)
        for i, free in enumerate(value.__code__.co_freevars):
            cell = value.__closure__[i]  # type: ignore[index]
            place = Attribute(cell, "cell_contents")
            try:
                held = cell.cell_contents
            except ValueError:  # not assigned yet
                self.slots.append(Slot(free, place, MISSING))
                continue
            self.visit(held, f"{variable}.__closure__[{i}].cell_contents", free, place)
        if value is not self._fitted:
            self._defaults(value, variable, name)
        self._state(value, variable, name, everything=False)
        self._read_globals(value, variable)
        for module in code_names.imported_modules(value.__code__):
            self.visit(module, self._source.bind(module), module.__name__, None)

    def _defaults(self, value: types.FunctionType, variable: str, name: str) -> None:
        for part in ("__defaults__", "__kwdefaults__"):
            self.visit(getattr(value, part), f"{variable}.{part}", f"{name}.{part}", Attribute(value, part))

    def _read_globals(self, function: types.FunctionType, variable: str) -> None:
        held = function.__globals__
        for key in sorted(code_names.global_names(function.__code__)):
            if key in held:
                self.visit(held[key], f"{variable}.__globals__[{key!r}]", key, Item(held, key))
            else:
                if self._plain and key == "print":
                    raise EagerOnly(f"{function.__qualname__!r} prints, which a compiled graph would not")
                self.reached.global_of_python(key)
                self.slots.append(Slot(key, Item(held, key), MISSING))
                self._source.require(f"{key!r} not in {variable}.__globals__")

    def _namespace(self, value: Any, variable: str, name: str) -> None:
        """A class or a Python module: what code mentions of it, if it is the user's."""
        self._inert(value, variable, name)
        if objects.is_trusted(value):
            return higher_order.refuse_mentioned(value, self._filter)
        if isinstance(value, type):
            self.reached.class_with(value, self._filter)
        for base in value.__mro__ if isinstance(value, type) else (value,):
            if objects.is_trusted(base):
                continue
            bound = self._source.bind(base)
            for key, held in list(vars(base).items()):
                path = f"{bound}.__dict__[{key!r}]"
                if key in self._filter or (isinstance(value, type) and code_names.is_implicit(value, key)):
                    for accessor, function in code_names.functions_of(held):
                        self.visit(function, path + accessor, f"{name}.{key}", None)
                is_code = any(code_names.functions_of(held)) or isinstance(held, property | staticmethod | classmethod)
                if key in self._filter and not is_code and not key.startswith("__"):
                    self.visit(held, path, f"{name}.{key}", Attribute(base, key))

    # Attributes.

    def _attributes(self, value: Any, variable: str, name: str) -> None:
        """What code mentions of an object: its own attributes, its methods, and the data of its class."""
        cls = type(value)
        for base, key, path, method in code_names.methods(cls, self._filter):
            if (base, key, path) in self._methods:
                continue
            self._methods.add((base, key, path))
            if objects.is_trusted(base):
                self.mentioned |= code_names.attribute_names(method.__code__)
                if not objects.is_trusted(method):  # somebody has replaced it
                    self.reached.untold()
            else:
                self.visit(method, f"{self._source.bind(base)}.__dict__[{key!r}]{path}", f"{base.__name__}.{key}", None)
        self.reached.class_with(cls, self._filter)
        unspelled = bool(self._filter & code_names.UNSPELLED) and not objects.is_trusted(cls)
        self._state(value, variable, name, everything=unspelled or isinstance(value, objects.RECORDS))
        for base, key, held in objects.data_of_class(
            cls, sorted(self._filter & set(dir(cls)) - objects.state_of(value).keys())
        ):
            path = f"{self._source.bind(base)}.__dict__[{key!r}]"
            self.visit(held, path, f"{name}.{key}", Attribute(base, key))

    def _state(self, value: Any, variable: str, name: str, *, everything: bool) -> None:
        """The `__dict__` of an object: those of its attributes that code mentions, and that there are no others."""
        state = objects.state_of(value)
        if not state and not hasattr(value, "__dict__"):
            return
        self.containers.append((name, state))
        if not isinstance(value, nn.Module):
            self._source.require_keys(f"{variable}.__dict__", list(state))
        prefix = f"{name}." if name else ""
        own = BOOKKEEPING if isinstance(value, nn.Module) else ()
        for key in list(state):
            if own and key in MODULE_STATE:
                continue
            if (everything and key not in own) or key in self._filter or key in ("forward", "__wrapped__"):
                self.visit(state[key], f"{variable}.__dict__[{key!r}]", f"{prefix}{key}", Item(state, key))
