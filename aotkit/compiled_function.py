"""What `compile` makes of a function: it finds a compilation that is valid for a call, or makes one.

The flow of a call: bring the arguments into canonical form; find an entry that is valid for them; if there is none,
trace, partition, compile and check one. Whatever a graph cannot stand for runs eagerly.
"""

import copy
import functools
import inspect
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, ParamSpec, TypeVar

import torch

from aotkit import aot
from aotkit.arguments import Arguments, flatten
from aotkit.captures import Walk, find_captures
from aotkit.checker import raise_if_different
from aotkit.comparison import CheckReport
from aotkit.dynamo import DynamoFunction
from aotkit.entry import Entry, Failure, new_entry
from aotkit.errors import AotkitError, EagerOnly, OwnError, TraceError, warn_of_fallback
from aotkit.executed import Followed, Unfollowed, executed_by
from aotkit.explanation import Explanation
from aotkit.family import Families, Found
from aotkit.guards import ArgumentGuard, Guard, GuardSource
from aotkit.interfaces import Graphs, Partitioner
from aotkit.methods import BoundFunction
from aotkit.parameters import Parameters
from aotkit.recipe import Randomness, recipe_of
from aotkit.recompilation import Recompilations, describe
from aotkit.registry import BackendSpec
from aotkit.signature import Signature, outcome_in_eager
from aotkit.substitution import Progress
from aotkit.verdicts import EagerVerdicts

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Capture = Literal["aot", "dynamo"]
OnError = Literal["raise", "eager"]


def options_of(
    backend: BackendSpec,
    partition: str | Partitioner,
    check: bool,
    capture: str,
    dynamic: bool,
    random: str,
    on_error: str,
) -> dict[str, Any]:
    """The keyword arguments of `compile`."""
    return {
        "backend": backend, "partition": partition, "check": check,
        "capture": capture, "dynamic": dynamic, "random": random, "on_error": on_error,
    }  # fmt: skip


class CompiledFunction(Generic[P, R]):
    """Call it like the function it wraps; ask it for the graphs that it compiled.

    Attributes:
        __wrapped__: the function itself.
    """

    __wrapped__: Callable[P, R]

    def __init__(
        self,
        fn: Callable[P, R],
        *,
        backend: BackendSpec,
        partition: str | Partitioner,
        check: bool,
        capture: Capture,
        dynamic: bool,
        random: Randomness,
        on_error: OnError,
    ) -> None:
        if not callable(fn):
            raise TypeError(f"compile takes a function or an nn.Module, not {fn!r}.")
        _one_of("capture", capture, ("aot", "dynamo"))
        _one_of("random", random, ("shared", "torch"))
        _one_of("on_error", on_error, ("raise", "eager"))
        # The attributes of a callable object are its own state; those of a function describe it.
        functools.update_wrapper(self, fn, updated=("__dict__",) if inspect.isroutine(fn) else ())
        self._options = options_of(backend, partition, check, capture, dynamic, random, on_error)
        self._recipe = recipe_of(fn, backend, partition, dynamic, random)
        self._check = check
        self._on_error = on_error
        self._parameters = Parameters(fn)
        self._families = Families(self._recipe.name)
        self._verdicts = EagerVerdicts(self._recipe.name)
        self._recompilations = Recompilations(self._recipe.name)
        self._followed: Followed | None = None  # None: all code within reach is
        self._dynamo = DynamoFunction(self._recipe, check, on_error) if capture == "dynamo" else None

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_dynamo_compiling():
            return self.__wrapped__(*args, **kwargs)
        if (found := self._find(args, kwargs)) is None:
            return self._call_anew(args, kwargs)  # type: ignore[no-any-return]
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
        return CompiledFunction(fn if inspect.isroutine(fn) else copy.copy(fn), **self._options)

    def __deepcopy__(self, memo: dict[int, Any]) -> "CompiledFunction[P, R]":
        return CompiledFunction(copy.deepcopy(self.__wrapped__, memo), **self._options)

    def __reduce__(self) -> Any:
        if _is_importable(self):  # as a decorated function is; the undecorated one is not
            return self.__qualname__  # type: ignore[attr-defined]
        return functools.partial(CompiledFunction, **self._options), (self.__wrapped__,)

    def __repr__(self) -> str:
        recipe = self._recipe
        return f"<compiled {recipe.name} (backend={recipe.backend_name!r}, partition={recipe.partition_name!r})>"

    def graphs(self, /, *args: P.args, **kwargs: P.kwargs) -> Graphs:
        """The graphs that a call with these arguments runs; compiles them if need be.

        Raises:
            TraceError: such a call runs eagerly, or in several pieces; the message says why.
        """
        self._raise_if_eager(aot.why_eager())
        if self._dynamo is not None:
            return self._dynamo.graphs(args, kwargs)
        return self._entry(args, kwargs).graphs

    def report(self, /, *args: P.args, **kwargs: P.kwargs) -> CheckReport:
        """The verdict of the check for a call with these arguments; compiles if need be.

        With `capture="dynamo"` it has the verdicts on all graphs that the call runs.

        Raises:
            TraceError: such a call runs eagerly; the message says why.
            ValueError: it was compiled with `check=False`.
        """
        if not self._check:
            raise ValueError(f"{self._recipe.name!r} was compiled with check=False: there is no report.")
        self._raise_if_eager(aot.why_eager())
        if self._dynamo is not None:
            return self._dynamo.report(args, kwargs)
        report = self._entry(args, kwargs).report
        assert report is not None
        return report

    def check(self, /, *args: P.args, **kwargs: P.kwargs) -> CheckReport:
        """Compare what is compiled for such a call with eager again, for the values of these arguments.

        Raises:
            MismatchError: they differ.
            TraceError: such a call runs eagerly, or in the pieces that `capture="dynamo"` checks as it compiles them.
        """
        self._raise_if_eager(aot.why_eager())
        if self._dynamo is not None:
            raise TraceError("With capture='dynamo', each graph is checked when it is compiled, and not again.")
        with aot.COMPILE_LOCK:
            entry = self._entry(args, kwargs)
            given = self._parameters.canonical(args, kwargs)

            def compare() -> CheckReport:
                signature, _, _ = self._signature(*given, flatten(*given))
                return entry.compare(self._recipe, signature, outcome_in_eager(signature))

            try:
                report = self._looking_further(compare)
            except OwnError as e:
                raise e.error from None
        raise_if_different(report)
        return report

    def explain(self, /, *args: P.args, **kwargs: P.kwargs) -> Explanation:
        """How a call with these arguments runs, and why, and what it launches; compiles if need be.

        The arguments are read again when what it launches is asked for, and are kept until then.
        """
        describe = functools.partial(Explanation, self._recipe.subject)
        if (reason := aot.why_eager()) is not None:
            return describe(eager=reason, entries=len(self._families))
        if self._dynamo is not None:
            measure = functools.partial(self._dynamo.kernels, args, kwargs)
            return describe(
                detour="TorchDynamo captures it, and has guards of its own", tier="Python", _measure=measure
            )
        try:
            entry, tensors = self._find(args, kwargs) or self._compiled(args, kwargs)
        except EagerOnly as e:
            return describe(eager=str(e), entries=len(self._families))
        except OwnError as e:
            raise e.error from None
        if isinstance(entry, Failure):
            return describe(eager=str(entry.error), entries=len(self._families))
        way = entry.way_in
        measure = functools.partial(entry.kernels, tensors)
        return describe(detour=way.detour, tier=way.tier, entries=len(self._families), _measure=measure)

    def _raise_if_eager(self, reason: str | None) -> None:
        if reason is not None:
            raise TraceError(f"{self._recipe.name!r} runs eagerly for these inputs: {reason}.")

    def _entry(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry:
        try:
            entry, _ = self._find(args, kwargs) or self._compiled(args, kwargs)
        except EagerOnly as e:
            self._raise_if_eager(str(e))
            raise
        except OwnError as e:
            raise e.error from None
        if isinstance(entry, Failure):
            raise entry.error
        return entry

    def _find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Found | None:
        """A valid entry for a call, and its flat inputs, if there is one."""
        begun = Progress.begun
        undisturbed = Progress.ended == begun
        try:
            found = self._families.find(*self._parameters.canonical(args, kwargs))
        except EagerOnly:
            return None
        # Another thread that compiles may have put stand-ins where this one looked for captured tensors.
        return found if undisturbed and Progress.begun == begun else None

    def _call_anew(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call for which there is no entry."""
        if (reason := aot.why_eager()) is not None:
            self._verdicts.log(reason)
            return self.__wrapped__(*args, **kwargs)
        if self._dynamo is not None:
            return self._dynamo(*args, **kwargs)
        try:
            entry, tensors = self._compiled(args, kwargs)
        except EagerOnly as e:
            self._verdicts.log(str(e))
        except OwnError as e:
            # It shall raise that once more, now having done to its inputs what it does before.
            self._verdicts.log(f"it raises {type(e.error).__name__}: {e.error}")
        else:
            if isinstance(entry, Entry):
                return entry.run(tensors)
        return self.__wrapped__(*args, **kwargs)

    def _compiled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Found:
        args, kwargs = self._parameters.canonical(args, kwargs)
        arguments = flatten(args, kwargs)
        self._verdicts.consult(arguments)
        with aot.COMPILE_LOCK, self._verdicts.learning(arguments):
            compile = functools.partial(self._compile, args, kwargs, arguments)
            return self._families.find(args, kwargs) or self._looking_further(compile)

    def _compile(self, args: tuple[Any, ...], kwargs: dict[str, Any], arguments: Arguments) -> Found:
        signature, guard, walk = self._signature(args, kwargs, arguments)
        for tensor in signature.tensors:
            if (reason := aot.why_eager_tensor(tensor)) is not None:
                raise EagerOnly(reason)
        entry = self._try_entry(signature)
        if isinstance(entry, Entry) or not _out_of_memory(entry.error):
            self._families.add(args, kwargs, guard, signature.tensors, entry)
        self._recompilations.count(lambda: describe(self._parameters, arguments, signature, walk))
        return entry, signature.tensors

    def _signature(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], arguments: Arguments
    ) -> tuple[Signature, Guard, Walk]:
        """What a call is given and reaches, and what must not change for it to be such a call again."""
        names, object_names = self._parameters.names_of(arguments)
        source = GuardSource()
        source.require_environment()
        given = ArgumentGuard(source, args, kwargs)
        fn = self.__wrapped__
        objects = zip(given.objects, given.objects.values(), object_names, strict=True)
        roots = [(source.bind(fn), fn, _root_name(fn)), *objects]
        walk = self._walk(functools.partial(find_captures, source, roots), arguments)
        return Signature(self._recipe, arguments, walk, names), walk.compile(given.tensors), walk

    def _walk(self, find: Callable[..., Walk], arguments: Arguments) -> Walk:
        """Look into all functions within reach; where that fails, into those alone that run."""
        try:
            return find(self._followed)
        except (EagerOnly, TraceError):
            if self._followed is not None:
                raise
            self._followed = executed_by(self.__wrapped__, arguments, find)
            return find(self._followed)

    def _looking_further(self, attempt: Callable[[], T]) -> T:
        """Try again as long as functions run that were not looked into."""
        while True:
            try:
                return attempt()
            except Unfollowed as e:
                assert self._followed is not None
                self._followed |= {e.code}

    def _try_entry(self, signature: Signature) -> Entry | Failure:
        try:
            # Its backward pass, which may run functions too, is not watched while it is traced.
            ran = outcome_in_eager(signature) if self._check or signature.is_watched else None
            want = ran if self._check else None
            return new_entry(self._recipe, signature, want)
        except AotkitError as e:
            if self._on_error == "raise":
                raise
            warn_of_fallback(self._recipe.name, e)
            return Failure(e, signature)


def _is_importable(obj: Any) -> bool:
    try:
        return operator.attrgetter(obj.__qualname__)(sys.modules[obj.__module__]) is obj
    except (AttributeError, KeyError):
        return False


def _out_of_memory(error: BaseException | None) -> bool:
    """Whether something failed for want of memory, so that it may work the next time."""
    while error is not None and not isinstance(error, MemoryError | torch.OutOfMemoryError):
        error = error.__cause__
    return error is not None


def _root_name(fn: Callable[..., Any]) -> str:
    return "" if inspect.ismethod(fn) else getattr(fn, "__name__", type(fn).__name__)


def _one_of(option: str, value: Any, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{option} must be one of {', '.join(map(repr, allowed))}, not {value!r}.")
