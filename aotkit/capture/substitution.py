"""Run a function with other tensors in the places where it finds its captured ones, and undo whatever it changes."""

import collections
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from aotkit.capture.places import Slot
from aotkit.errors import TraceError

# What torch's modules recompute from their parameters on every call.
CACHES = {nn.RNNBase: ("_flat_weights", "_flat_weight_refs")}


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
