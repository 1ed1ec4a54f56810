"""What `compile(backend="autotune")` makes of a function: each kind of call runs as was found to be best for it."""

import functools
import threading
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from dataclasses import replace
from types import MethodType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor, nn

from aotkit.compiled import CompiledFunction, Explanation
from aotkit.errors import AotkitError, TraceError
from aotkit.runtime import COMPILE_LOCK
from aotkit.torch_private.dispatch import pytree
from aotkit.torch_private.switches import why_eager
from aotkit.tuning.answer import tuned
from aotkit.tuning.candidates import Candidate
from aotkit.tuning.recipe import TunedRecipe
from aotkit.tuning.verdicts import in_one_line

if TYPE_CHECKING:
    from aotkit.compiler import Options

P = ParamSpec("P")
R = TypeVar("R")
IS_EAGER = "that was found to be best by measuring"
MOST_MEASURED = 8  # kinds of calls: with sizes that change all the time, each would take a minute


def _delegated(name: str) -> Any:
    """A method of a compiled function, as one of what runs such a call."""
    method = getattr(CompiledFunction, name)

    @functools.wraps(method)
    def call(self: "TunedFunction[..., Any]", /, *args: Any, **kwargs: Any) -> Any:
        run = self.run_of(args, kwargs)
        if isinstance(run, CompiledFunction):
            return method(run, *args, **kwargs)
        reason = f"{self.recipe(*args, **kwargs).name!r} runs eagerly for these inputs: {IS_EAGER}."
        raise TraceError(reason)

    return call


class TunedFunction(CompiledFunction[P, R]):
    """Call it like the function it wraps; `recipe(*args)` tells how such a call runs, and what else was tried.

    A kind of call is one structure of arguments, with their shapes and types, and the gradient mode. Two calls of one
    kind may yet differ: what runs is right for any call, since it has guards of its own.
    """

    def __init__(self, fn: Callable[P, R], options: "Options") -> None:
        super().__init__(fn, {**options, "backend": "auto"})
        self._lock = threading.RLock()
        self._recipes: dict[Hashable, TunedRecipe] = {}
        self._runs: dict[Hashable, Callable[P, R]] = {}
        self._made: dict[str, Callable[P, R]] = {}  # by the line of the recipe: kinds of calls share it
        self._first_call = nullcontext  # type: ignore[assignment]  # what runs has one of its own

    def _call_anew(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        """A call that the guards of what ran last do not let through: they are all that other calls pay."""
        if (run := self._runs.get(_kind(args, kwargs))) is None:
            # As a part of something that is compiled, it waits for no lock: who has it may be waiting for that one.
            if COMPILE_LOCK.is_held_here() or why_eager() is not None:
                return self.__wrapped__(*args, **kwargs)
            run = self.run_of(args, kwargs)
        if isinstance(run, CompiledFunction) and not self._options["dynamic"]:  # else they let other kinds through
            self._direct = run._direct
        return run(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<compiled {self._recipe.name} (backend='autotune')>"

    graphs, report, check, timeline, save = map(_delegated, ("graphs", "report", "check", "timeline", "save"))

    def explain(self, /, *args: P.args, **kwargs: P.kwargs) -> Explanation:
        """How such a call runs, and why, and what it launches; measures and compiles if need be."""
        run = self.run_of(args, kwargs)
        if isinstance(run, CompiledFunction):
            return run.explain(*args, **kwargs)
        return Explanation(self._recipe.subject, eager=IS_EAGER)

    def recipe(self, /, *args: P.args, **kwargs: P.kwargs) -> TunedRecipe:
        """How such a call runs, and what else was tried; measures if need be."""
        self.run_of(args, kwargs)
        return self._recipes[_kind(args, kwargs)]

    def run_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[P, R]:
        """What runs such a call; measures if need be."""
        kind = _kind(args, kwargs)
        with self._lock:
            if kind not in self._runs:
                recipe = self._tuned(args, kwargs)
                self._runs[kind] = self._made.setdefault(recipe.line, recipe.apply())
                self._recipes[kind] = recipe
            return self._runs[kind]

    def _tuned(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TunedRecipe:
        options = {name: value for name, value in self._options.items() if name != "backend"}
        fn = self.__wrapped__
        if len(self._recipes) >= MOST_MEASURED:
            last = next(reversed(self._recipes.values()))
            return replace(last, origin=f"not measured: {MOST_MEASURED} kinds of calls have been; as the last one")
        if (reason := self._why_not(args, kwargs)) is not None:
            return TunedRecipe(fn, self._recipe.name, Candidate({}), origin=f"not measured: {reason}", options=options)
        return tuned(fn, args, kwargs, options)

    def _why_not(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """Why the function is not to be called many times: what does not happen on copies stays."""
        fn = self.__wrapped__
        if isinstance(fn, nn.Module) or (isinstance(fn, MethodType) and isinstance(fn.__self__, nn.Module)):
            return None
        probe = cast("Options", {**self._options, "backend": "nop", "capture": "aot", "check": True})
        try:
            report = CompiledFunction(fn, probe).report(*args, **kwargs)
        except AotkitError as e:
            return f"a function that is called many times must be known to change nothing: {in_one_line(e)}"
        changed = [c.what for c in report.comparisons if c.what.endswith("after the call")]
        return f"it changes {changed[0].removesuffix(' after the call')}" if changed else None


def _kind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    """Equal for calls that are to run in the same way."""
    given = (*map(_kind_of, args), *((name, _kind_of(value)) for name, value in kwargs.items()))
    return torch.is_grad_enabled(), given


def _kind_of(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if not isinstance(value, list | tuple | dict):
        return str(type(value))
    leaves, spec = pytree.tree_flatten(value)
    return str(spec), *((x.shape, x.dtype) if isinstance(x, Tensor) else type(x) for x in leaves)
