"""Compiled functions as methods of a class."""

import functools
from typing import TYPE_CHECKING, Any

from aotkit.checking import CheckReport
from aotkit.compiled.explanation import Explanation
from aotkit.graphs import Graphs

if TYPE_CHECKING:
    from aotkit.compiled.function import CompiledFunction


class BoundFunction:
    """A compiled function bound to an instance, as methods are."""

    def __init__(self, compiled: "CompiledFunction[..., Any]", instance: Any) -> None:
        functools.update_wrapper(self, compiled, updated=())
        self._compiled = compiled
        self.__self__ = instance

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(self.__self__, *args, **kwargs)

    def __reduce__(self) -> Any:
        return BoundFunction, (self._compiled, self.__self__)

    def graphs(self, /, *args: Any, **kwargs: Any) -> Graphs:
        """The graphs that a call with these arguments runs."""
        return self._compiled.graphs(self.__self__, *args, **kwargs)

    def report(self, /, *args: Any, **kwargs: Any) -> CheckReport:
        """The verdict of the check for a call with these arguments."""
        return self._compiled.report(self.__self__, *args, **kwargs)

    def check(self, /, *args: Any, **kwargs: Any) -> CheckReport:
        """Compare a call with these arguments with eager again."""
        return self._compiled.check(self.__self__, *args, **kwargs)

    def explain(self, /, *args: Any, **kwargs: Any) -> Explanation:
        """How a call with these arguments runs, and why."""
        return self._compiled.explain(self.__self__, *args, **kwargs)
