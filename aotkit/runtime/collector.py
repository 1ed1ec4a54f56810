"""When Python's garbage collector runs."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """What the collector takes, and frees, would count as what runs meanwhile takes and frees.

    Threads that do this at the same time leave the collector running in the end: the first one turns it on again.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_were_enabled: list[bool] = []  # whether the collector ran, before each `collecting_later` that is under way
_others_freeze = False  # what they have frozen is not ours to unfreeze, and to count it takes as long as there is of it


@contextmanager
def collecting_later() -> Iterator[None]:
    """While a graph is traced and cut. The collector would go through all of its nodes again and again."""
    global _others_freeze
    _were_enabled.append(gc.isenabled())
    gc.disable()
    try:
        yield
    finally:
        if _were_enabled.pop():
            _others_freeze = _others_freeze or gc.get_freeze_count() > 0
            if not _others_freeze:
                gc.freeze()  # what was made meanwhile counts as old now: the next collection does not go through it
                gc.unfreeze()
            gc.enable()


@contextmanager
def collecting() -> Iterator[None]:
    """Within `collecting_later`, while other people's code runs, which may leave much to collect."""
    is_postponed = any(_were_enabled) and not gc.isenabled()
    if is_postponed:
        gc.enable()
    try:
        yield
    finally:
        if is_postponed:
            gc.disable()
