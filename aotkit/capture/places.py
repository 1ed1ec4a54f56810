"""Where a function finds values: other tensors are put there for a while, and whatever it changes is undone."""

import collections
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, NamedTuple, TypeVar

from torch import Tensor, nn

from aotkit.errors import TraceError

T = TypeVar("T")

MISSING = object()  # stands for no value at all
# What torch's modules recompute from their parameters on every call.
CACHES = {nn.RNNBase: ("_flat_weights", "_flat_weight_refs")}


# Each place has `get`, which gives MISSING if nothing is there, and `put`, which takes MISSING for nothing.


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


Place = Item | Attribute | ContextVariable


class Slot(NamedTuple):
    """A place and what is kept there.

    Attributes:
        name: what messages call it.
    """

    name: str
    place: Place
    value: Any


class Progress:
    """Counts substitutions: while one is under way, other threads must not look for captured tensors."""

    begun = 0
    ended = 0


@contextmanager
def substituted(
    slots: Sequence[Slot],
    containers: Sequence[tuple[str, Any]],
    caches: Sequence[Any],
    replacements: Mapping[int, Tensor],
    doing: str,
) -> Iterator[None]:
    """Put `replacements[id(tensor)]` in the place of each tensor for a while.

    Afterwards slots and containers hold what they held before, whatever the function assigned.

    Args:
        containers: named dicts, lists, deques and sets that the function may change.
        caches: functions with `functools.cache`; emptied before and after, as they would keep the wrong tensors.
        doing: what is done with the function meanwhile, for the message.

    Raises:
        TraceError: the function assigned something; a compiled graph could not repeat that.
    """
    before = [_copy(container) for _, container in containers]
    Progress.begun += 1
    changed = None
    try:
        for cache in caches:
            cache.cache_clear()
        for slot in slots:
            if (new := _replace(slot.value, replacements)) is not slot.value:
                slot.place.put(new)
        between = [_copy(container) for _, container in containers]
        placed = [slot.place.get() for slot in slots]
        yield
        for slot, was in zip(slots, placed, strict=True):
            if slot.place.get() is not was and not _is_cache(slot.name):
                changed = changed or slot.name
        for (name, container), was in zip(containers, between, strict=True):
            changed = changed or _difference(name, container, was)
    finally:
        for (_, container), was in zip(containers, before, strict=True):
            if not _identical(container, was):
                _restore(container, was)
        for slot in slots:
            if slot.place.get() is not slot.value:
                slot.place.put(slot.value)
        for cache in caches:
            cache.cache_clear()
        Progress.ended += 1
    if changed:
        raise TraceError(
            f"the function changes {changed!r} while it is {doing}; a compiled graph would not repeat that. "
            "Return the new value instead, or use capture='dynamo'."
        )


def _is_cache(name: str) -> bool:
    return any(part in names for names in CACHES.values() for part in name.replace("[", ".").split("."))


def _replace(value: Any, replacements: Mapping[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return replacements.get(id(value), value)
    if isinstance(value, tuple) and any(isinstance(v, Tensor | tuple) for v in value):
        items = [_replace(v, replacements) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def _copy(container: Any) -> Any:
    return dict(dict.items(container)) if isinstance(container, dict) else list(container)


def _identical(container: Any, was: Any) -> bool:
    now = _copy(container)
    if isinstance(now, dict):
        return now.keys() == was.keys() and all(now[k] is was[k] for k in now)
    return len(now) == len(was) and all(a is b for a, b in zip(now, was, strict=True))


def _difference(name: str, container: Any, was: Any) -> str | None:
    if _identical(container, was):
        return None
    if isinstance(container, dict):
        now = _copy(container)
        for key in {**now, **was}:
            if now.get(key, was) is not was.get(key, now) and not _is_cache(str(key)):
                return f"{name}.{key}" if name else str(key)
        return None
    return None if _is_cache(name) else name or "its state"


def _restore(container: Any, was: Any) -> None:
    container.clear()
    container.extend(was) if isinstance(container, list | collections.deque) else container.update(was)
