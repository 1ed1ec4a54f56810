"""Which functions run, of those within reach: where that is too wide, nothing else is looked into.

A library's function may be one step away from all that its package does: one entry of a table, one branch not taken.
"""

import sys
import threading
from collections.abc import Callable, Collection, Iterator, Set
from contextlib import ExitStack, contextmanager, suppress
from types import CodeType, FrameType
from typing import Any, TypeVar

import torch

from aotkit.capture.arguments import Arguments
from aotkit.capture.places import substituted
from aotkit.capture.refusals import EagerOnly
from aotkit.capture.walk import Walk
from aotkit.capture.watching import Fakes

T = TypeVar("T")
Followed = frozenset[CodeType]


class Unfollowed(BaseException):
    """Not for users: a function begins to run that was not looked into. No function may take this for its own error."""

    def __init__(self, code: CodeType) -> None:
        super().__init__(code.co_qualname)
        self.code = code


def _profilers() -> tuple[Any, Any]:
    """The profilers of this thread, and of those that will start.

    Raises:
        EagerOnly: one in C is active; Python cannot take its place and give it back.
    """
    found = sys.getprofile(), threading.getprofile()
    if found[0] is not None and not callable(found[0]):
        raise EagerOnly("it reaches more than can be compared, and a profiler hides what of that it runs")
    return found


@contextmanager
def _on_entry(enter: Callable[[CodeType], None]) -> Iterator[None]:
    """Call `enter` before any Python code begins to run, in backward passes and in threads that start, too."""
    before = _profilers()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            enter(frame.f_code)

    with torch.autograd.set_multithreading_enabled(False):
        try:
            threading.setprofile(profile)
            sys.setprofile(profile)
            yield
        finally:
            sys.setprofile(before[0])
            threading.setprofile(before[1])


@contextmanager
def watching(unfollowed: Collection[CodeType]) -> Iterator[None]:
    """Run none of these functions.

    Raises:
        Unfollowed: one of them was about to run.
    """
    if not unfollowed:
        yield
        return
    met: list[Unfollowed] = []

    def enter(code: CodeType) -> None:
        if code in unfollowed:
            met.append(Unfollowed(code))
            raise met[0]

    try:
        with _on_entry(enter):
            yield
    finally:
        if met:  # something may have taken the exception for its own
            raise met[0]


def executed_by(fn: Callable[..., Any], arguments: Arguments, find: Callable[[Followed, Set[str]], Walk]) -> Followed:
    """The code that a call of `fn` runs, up to its first error, on fake tensors; whatever else it changes is undone.

    What it does to context variables stays: call it in a copy of the context.

    Args:
        find: looks into this code alone, which mentions these names.

    Raises:
        EagerOnly: some of it reads something that can be neither fetched nor compared, and has not run; or a profiler
            is active.
    """
    _profilers()
    followed: Followed = frozenset()
    refusal: list[EagerOnly] = []
    walk = find(followed, frozenset())
    fakes = Fakes()

    with suppress(Exception), ExitStack() as undo, fakes.running():

        def look_into(code: CodeType) -> None:
            nonlocal followed, walk
            walk = find(followed | {code}, walk.mentioned)
            followed |= {code}
            replacements = {i: fakes.of(tensor) for i, (_, tensor) in walk.tensors.items()}
            undo.enter_context(substituted(walk.slots, walk.containers, walk.caches, replacements, "looked at"))

        def enter(code: CodeType) -> None:
            if code in walk.unfollowed:
                try:
                    look_into(code)
                except EagerOnly as e:
                    refusal.append(e)
                    raise Unfollowed(code) from None

        args, kwargs = arguments.rebuild([fakes.of(tensor) for tensor in arguments.tensors])
        with _on_entry(enter), suppress(Unfollowed):
            fn(*args, **kwargs)
    if refusal:
        raise refusal[0]
    return followed
