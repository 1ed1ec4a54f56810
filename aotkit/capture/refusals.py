"""Why a call is not compiled, though nothing is wrong: for what has asked to compile it, not for users."""

import inspect
from typing import Any


class EagerOnly(Exception):
    """A call cannot be compiled; the message says why.

    Attributes:
        final: whether no other way of capture could compile it.
    """

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class OwnError(Exception):
    """The function itself raised `error` on copies of its inputs."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def why_later(fn: Any) -> str | None:
    """Why a call of a function computes nothing by itself, if so; a graph would compute at once, and only once."""
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        return "it is a generator function, which computes while its results are taken"
    if inspect.iscoroutinefunction(fn):
        return "it is a coroutine function, which computes when it is awaited"
    return None
