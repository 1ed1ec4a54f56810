"""What `compile` makes of a function: each call takes the way that it can.

A call for which there are compiled graphs runs them. Another one is traced directly; where that cannot be, TorchDynamo
captures it; and what neither can stand for runs eagerly, with a warning.
"""

import copy
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar

import torch

from aotkit.capture import (
    DirectFunction,
    DynamoFunction,
    EagerOnly,
    Entry,
    Failure,
    FirstCall,
    OwnError,
    Piece,
    is_importable,
    recipe_of,
    why_later,
)
from aotkit.checking import CheckReport, raise_if_different
from aotkit.compiled.explanation import Explanation
from aotkit.compiled.saving import save
from aotkit.errors import TraceError
from aotkit.inspection import Graphs
from aotkit.runtime import COMPILE_LOCK, warn_of_eager_call
from aotkit.timeline import Timeline, stage
from aotkit.torch_private import native
from aotkit.torch_private.switches import why_eager

if TYPE_CHECKING:
    from aotkit.compiler import Options

P = ParamSpec("P")
R = TypeVar("R")


class CompiledFunction(Generic[P, R]):
    """Call it like the function it wraps; ask it for the graphs that it compiled.

    Attributes:
        __wrapped__: the function itself.
    """

    __wrapped__: Callable[P, R]

    def __init__(self, fn: Callable[P, R], options: "Options") -> None:
        if not callable(fn):
            raise TypeError(f"compile takes a function or an nn.Module, not {fn!r}.")
        # The attributes of a callable object are its own state; those of a function describe it.
        functools.update_wrapper(self, fn, updated=("__dict__",) if inspect.isroutine(fn) else ())
        self._options = options
        capture, dynamic = options["capture"], bool(options["dynamic"])
        self._recipe = recipe_of(fn, options["backend"], options["partition"], dynamic, options["random"])
        check, later = bool(options["check"]), options["check"] == "later"
        self._opens = options["dynamic"] is None and not self._recipe.backend.fixed_sizes
        self._direct = DirectFunction(self._recipe, check, options["on_error"], capture == "auto", self._opens)
        self._dynamo: DynamoFunction | None = None
        self._first_call = FirstCall(fn, self._recipe.subject)
        self._handed_over = ""  # why TorchDynamo has what is not compiled yet
        self.eager_reasons: set[str] = set()  # why calls have run eagerly
        if capture == "dynamo" or later:
            self._hand_over("check='later'" if later else "capture='dynamo'")

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_dynamo_compiling():
            return self.__wrapped__(*args, **kwargs)
        if (found := self._direct.find(args, kwargs)) is None:
            with self._first_call():
                result = self._call_anew(args, kwargs)
            native.begin_build()  # now that compilers are done
            return result  # type: ignore[no-any-return]
        entry, tensors = found
        if type(entry) is Entry:
            # What `entry.run` does, without its frame.
            return entry.rebuild(entry.run_graphs(tensors))  # type: ignore[no-any-return]
        return self.__wrapped__(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method: the instance is the first argument."""
        return self if instance is None else BoundFunction(self, instance)

    # Copies share nothing: what was compiled finds its tensors in the original.

    def __copy__(self) -> "CompiledFunction[P, R]":
        fn = self.__wrapped__
        return type(self)(fn if inspect.isroutine(fn) else copy.copy(fn), self._options)

    def __deepcopy__(self, memo: dict[int, Any]) -> "CompiledFunction[P, R]":
        return type(self)(copy.deepcopy(self.__wrapped__, memo), self._options)

    def __reduce__(self) -> Any:
        if is_importable(self):  # as a decorated function is; the undecorated one is not
            return self.__qualname__  # type: ignore[attr-defined]
        return type(self), (self.__wrapped__, self._options)

    def __repr__(self) -> str:
        recipe = self._recipe
        return f"<compiled {recipe.name} (backend={recipe.backend_name!r}, partition={recipe.partition_name!r})>"

    def graphs(self, /, *args: P.args, **kwargs: P.kwargs) -> Graphs:
        """The graphs that a call with these arguments runs; compiles them if need be.

        Where TorchDynamo captures the call, this makes it once more: random state is put back, mutations remain.

        Raises:
            TraceError: such a call runs eagerly, or in several pieces; the message says why.
        """
        found = self._way(args, kwargs)
        return found.graphs if isinstance(found, Entry) else found.visit(args, kwargs).graphs

    def report(self, /, *args: P.args, **kwargs: P.kwargs) -> CheckReport:
        """The verdict of the check for a call with these arguments; compiles if need be.

        Where TorchDynamo captures the call, this makes it once more, and has the verdicts on all graphs that it runs.

        Raises:
            TraceError: such a call runs eagerly; the message says why.
            ValueError: it was compiled with `check=False`.
        """
        if not self._options["check"]:
            raise ValueError(f"{self._recipe.name!r} was compiled with check=False: there is no report.")
        found = self._way(args, kwargs)
        report = found.report if isinstance(found, Entry) else found.visit(args, kwargs).report
        assert report is not None
        return report

    def check(self, /, *args: P.args, **kwargs: P.kwargs) -> CheckReport:
        """Compare what is compiled for such a call with eager again, for the values of these arguments.

        Where TorchDynamo captures the call, this makes it once more, and compares each of its graphs.

        Raises:
            MismatchError: they differ.
            TraceError: such a call runs eagerly.
        """
        found = self._way(args, kwargs)
        if isinstance(found, DynamoFunction):
            report = found.visit(args, kwargs, check=True).report
        else:
            with self._refusing():
                report = self._direct.check_again(args, kwargs)
        raise_if_different(report)
        return report

    def save(self, path: str | os.PathLike[str], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Write what a call with these arguments runs into a file, for `aotkit.load`; compiles if need be.

        The call is made once more, and a step on made-up values, which loading compares: random state is put back.

        Raises:
            TraceError: such a call runs eagerly.
            UnsupportedError: it is more than one graph that mutates nothing, or the backend does not tell what it
                compiled.
            OSError: the file cannot be written.
        """
        found = self._way(args, kwargs)
        tensors = [] if isinstance(found, DynamoFunction) else self._choose(args, kwargs)[1]
        save(path, self._recipe, found, tensors, args, kwargs)

    def timeline(self, /, *args: P.args, **kwargs: P.kwargs) -> Timeline:
        """Where the time and the memory of the first call with such arguments went; compiles if need be.

        Where TorchDynamo captures the call, this makes it once more: random state is put back, mutations remain.

        Raises:
            TraceError: such a call runs eagerly; the message says why.
        """
        found = self._way(args, kwargs)
        timeline = found.timeline if isinstance(found, Entry) else found.visit(args, kwargs).timeline
        if timeline is None:
            self._raise_eager("it runs no graph")
        return timeline

    def explain(self, /, *args: P.args, **kwargs: P.kwargs) -> Explanation:
        """How a call with these arguments runs, and why, and what it launches; compiles if need be.

        The arguments are read again when what it launches is asked for, and are kept until then. Where TorchDynamo
        captures the call, this makes it once more: random state is put back, mutations remain.
        """
        try:
            found, tensors = self._choose(args, kwargs)
            if isinstance(found, DynamoFunction):
                visit = found.visit(args, kwargs)
                graphs = [piece.graphs for piece in visit.pieces if piece.graphs]
                return Explanation(
                    self._recipe.subject_of(graphs), eager=visit.eager, capture=None if visit.eager else "dynamo",
                    handed_over=self._handed_over,
                    pieces=len(visit.pieces), breaks=visit.breaks, entries=found.entries,
                    all_graphs=graphs, timeline=visit.timeline, _launched=visit.launched,
                )  # fmt: skip
        except EagerOnly as e:
            return Explanation(self._recipe.subject, eager=str(e), entries=len(self._direct))
        except OwnError as e:
            raise e.error from None
        if isinstance(found, Failure):
            return Explanation(self._recipe.subject, eager=str(found.error), entries=len(self._direct))
        way = found.way_in
        return Explanation(
            self._recipe.subject_of([found.graphs]), detour=way.detour, tier=way.tier, capture="aot", pieces=1,
            entries=len(self._direct), all_graphs=[found.graphs], timeline=found.timeline,
            _launched=functools.partial(found.launched, tensors),
        )  # fmt: skip

    @property
    def captured(self) -> Sequence[Piece]:
        """The graphs that TorchDynamo has captured so far, in all calls, here or in an earlier process."""
        return () if self._dynamo is None else self._dynamo.captured

    def _way(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry | DynamoFunction:
        """What takes such a call; compiles if need be.

        Raises:
            TraceError: it runs eagerly.
        """
        with self._refusing():
            found, _ = self._choose(args, kwargs)
        if isinstance(found, Failure):
            raise found.error
        return found

    def _raise_eager(self, reason: str) -> NoReturn:
        raise TraceError(f"{self._recipe.name!r} runs eagerly for these inputs: {reason}.")

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Raise a TraceError for a call that runs eagerly, and the function's own error for one in which it raises."""
        try:
            yield
        except EagerOnly as e:
            self._raise_eager(str(e))
        except OwnError as e:
            raise e.error from None

    def _choose(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Entry | Failure | DynamoFunction, list[Any]]:
        """What takes such a call, and its flat inputs if that is known; compiles if need be.

        Raises:
            EagerOnly: such a call runs eagerly.
            OwnError: the function itself raises.
        """
        if COMPILE_LOCK.is_held_here():  # Dynamo's own lock could be waited for by who waits for this one
            raise EagerOnly("it is a part of something that is being compiled as a whole", final=True)
        if (reason := why_eager() or why_later(self.__wrapped__)) is not None:
            raise EagerOnly(reason, final=True)
        if self._dynamo is not None:
            return self._direct.find(args, kwargs) or (self._dynamo, [])
        timeline = Timeline(self._recipe.subject)
        with timeline.recording():
            try:
                return self._direct.found_or_compiled(args, kwargs)
            except (EagerOnly, TraceError) as e:
                if self._options["capture"] == "aot" or (isinstance(e, EagerOnly) and e.final):
                    raise
                reason, _, _ = str(e).partition(". ")  # what follows is advice
                return self._hand_over(reason, timeline), []

    @stage("begin with TorchDynamo")
    def _hand_over(self, reason: str, timeline: Timeline | None = None) -> DynamoFunction:
        """From now on TorchDynamo captures whatever has not been compiled."""
        self._handed_over = reason
        options = self._options
        dynamic = None if self._opens else bool(options["dynamic"])
        self._dynamo = DynamoFunction(
            self._recipe, dynamic, options["check"], options["on_error"], options["strict"], timeline
        )
        return self._dynamo

    def _call_anew(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call for which there are no graphs yet."""
        try:
            found, tensors = self._choose(args, kwargs)
        except EagerOnly as e:
            return self._call_eagerly(str(e), args, kwargs)
        except OwnError as e:
            # It shall raise that once more, now having done to its inputs what it does before.
            result = self.__wrapped__(*args, **kwargs)
            reason = f"on copies of its inputs it raises {type(e.error).__name__}: {e.error}"
            if self._options["capture"] == "auto":  # it lacks what copies have not, such as `.grad`
                self._hand_over(reason)
            self._tell_of_eager_call(reason)
            return result
        if isinstance(found, Entry):
            return found.run(tensors)
        if isinstance(found, Failure):  # of which the user has been warned
            return self.__wrapped__(*args, **kwargs)
        result, eager = found(args, kwargs)
        if eager is not None:
            self._tell_of_eager_call(eager)
        return result

    def _call_eagerly(self, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if COMPILE_LOCK.is_held_here():  # a part of something that is compiled as a whole
            return self.__wrapped__(*args, **kwargs)
        if self._options["strict"]:
            self._raise_eager(reason)
        result = self.__wrapped__(*args, **kwargs)
        self._tell_of_eager_call(reason)
        return result

    def _tell_of_eager_call(self, reason: str) -> None:
        """Warn, once for each reason, that a whole call runs uncompiled.

        Raises:
            TraceError: the user wants no such calls.
        """
        if self._options["strict"]:
            self._raise_eager(reason)
        if reason not in self.eager_reasons:
            self.eager_reasons.add(reason)
            warn_of_eager_call(self._recipe.name, reason)


def _for_instance(name: str) -> Any:
    """A method of a compiled function, as one of what is bound to an instance."""
    method = getattr(CompiledFunction, name)

    @functools.wraps(method)
    def call(self: "BoundFunction", /, *args: Any, **kwargs: Any) -> Any:
        return method(self._compiled, self.__self__, *args, **kwargs)

    return call


class BoundFunction:
    """A compiled function bound to an instance, as methods are."""

    def __init__(self, compiled: CompiledFunction[..., Any], instance: Any) -> None:
        functools.update_wrapper(self, compiled, updated=())
        self._compiled = compiled
        self.__self__ = instance

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(self.__self__, *args, **kwargs)

    def __reduce__(self) -> Any:
        return BoundFunction, (self._compiled, self.__self__)

    graphs, report, check, explain = map(_for_instance, ("graphs", "report", "check", "explain"))
