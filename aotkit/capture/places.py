"""Places in which a function finds values, and can leave others."""

import sys
import types
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, NamedTuple, Protocol, TypeVar

T = TypeVar("T")

MISSING = object()  # stands for no value at all


class Place(Protocol):
    """Where a value is kept."""

    def get(self) -> Any:
        """What is there now; MISSING if nothing is."""
        ...

    def put(self, value: Any) -> None:
        """Put another value there, or nothing if it is MISSING."""
        ...


class Item(NamedTuple):
    """An item of a dict, list or deque."""

    container: Any
    key: Any

    def get(self) -> Any:
        # A subclass of dict may do something else in its own methods.
        get = dict.__getitem__ if isinstance(self.container, dict) else type(self.container).__getitem__
        try:
            return get(self.container, self.key)
        except (IndexError, KeyError):
            return MISSING

    def put(self, value: Any) -> None:
        if value is MISSING:
            del self.container[self.key]
        elif isinstance(self.container, dict):
            dict.__setitem__(self.container, self.key, value)
        else:
            self.container[self.key] = value


class Attribute(NamedTuple):
    """An attribute of an object, a class or a module; the content of a cell."""

    owner: Any
    name: str

    def get(self) -> Any:
        try:
            return vars(self.owner)[self.name] if isinstance(self.owner, type) else getattr(self.owner, self.name)
        except (AttributeError, KeyError, ValueError):  # the last of an empty cell
            return MISSING

    def put(self, value: Any) -> None:
        if value is MISSING:
            delattr(self.owner, self.name)
            return
        is_own = isinstance(self.owner, types.CellType | types.ModuleType | types.FunctionType | type)
        (setattr if is_own else object.__setattr__)(self.owner, self.name, value)  # frozen dataclasses too


class ContextVariable(NamedTuple):
    """What a context variable holds in the current context, a copy of the caller's."""

    variable: "ContextVar[Any]"

    def get(self) -> Any:
        return self.variable.get(MISSING)

    def put(self, value: Any) -> None:
        if value is not MISSING:  # Python has no way to take a value out again; it goes with the copy
            self.variable.set(value)

    def default(self) -> Any:
        """What the variable gives where it holds nothing; MISSING if it raises there, or holds something."""
        try:
            return self.variable.get() if self.get() is MISSING else MISSING
        except LookupError:
            return MISSING


@contextmanager
def in_copied_context(manager: AbstractContextManager[T]) -> Iterator[T]:
    """Enter and leave `manager` in a copy of the current context, so that no context variable stays changed."""
    context = copy_context()
    value = context.run(manager.__enter__)
    try:
        yield value
    except BaseException:
        if not context.run(manager.__exit__, *sys.exc_info()):
            raise
    else:
        context.run(manager.__exit__, None, None, None)


class Slot(NamedTuple):
    """A place and what is kept there.

    Attributes:
        name: what messages call it.
    """

    name: str
    place: Place
    value: Any
