"""`compile`: from a Python function or module to one that runs compiled forward and backward graphs.

The flow of a call, in `CompiledFunction`: bring the arguments into canonical form; find an entry that is valid for
them; if there is none, trace, partition, compile and check one. Whatever a graph cannot stand for runs eagerly.
"""

import copy
import dataclasses
import functools
import inspect
import operator
import shutil
import sys
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, Literal, ParamSpec, TypeVar, overload

import torch
from torch import Tensor, nn

from aotkit import aot
from aotkit.arguments import Arguments, Parameters, flatten
from aotkit.captures import EagerOnly, find_captures
from aotkit.checker import CheckReport
from aotkit.copies import Outcome
from aotkit.dynamo import DynamoFunction
from aotkit.entry import Entry, Recipe, Signature, outcome_in_eager
from aotkit.errors import AotkitError, TraceError, warn_of_fallback
from aotkit.family import Families
from aotkit.interfaces import Graphs, Partitioner
from aotkit.methods import BoundFunction
from aotkit.recompilation import Recompilations, describe
from aotkit.registry import AnyBackend, get_backend, get_partitioner, name_of
from aotkit.substitution import Progress
from aotkit.verdicts import EagerVerdicts

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=nn.Module)
Capture = Literal["aot", "dynamo"]
OnError = Literal["raise", "eager"]


@overload
def compile(  # type: ignore[overload-overlap]
    fn: M,
    /,
    *,
    backend: str | AnyBackend = ...,
    partition: str | Partitioner = ...,
    check: bool = ...,
    capture: Capture = ...,
    dynamic: bool = ...,
    on_error: OnError = ...,
) -> M: ...
@overload
def compile(
    fn: Callable[P, R],
    /,
    *,
    backend: str | AnyBackend = ...,
    partition: str | Partitioner = ...,
    check: bool = ...,
    capture: Capture = ...,
    dynamic: bool = ...,
    on_error: OnError = ...,
) -> "CompiledFunction[P, R]": ...
@overload
def compile(
    *,
    backend: str | AnyBackend = ...,
    partition: str | Partitioner = ...,
    check: bool = ...,
    capture: Capture = ...,
    dynamic: bool = ...,
    on_error: OnError = ...,
) -> "Callable[[Callable[P, R]], CompiledFunction[P, R]]": ...
def compile(
    fn: Any = None,
    /,
    *,
    backend: str | AnyBackend = "auto",
    partition: str | Partitioner = "auto",
    check: bool = True,
    capture: Capture = "aot",
    dynamic: bool = False,
    on_error: OnError = "raise",
) -> Any:
    """Compile a function or module ahead of time: `compile(fn)`, `@compile` or `@compile(backend="nop")`.

    Each new kind of input (structure, shapes, dtypes, constants, gradient mode, ...) compiles once, on its first
    call; all live side by side.

    Args:
        fn: takes and returns tensors, nested in lists, tuples and dicts as you like.
        backend: a name from `list_backends()`, `dynamo:NAME`, a `Backend`, or a graph compiler. "auto": `inductor`
            where a C++ compiler is found, else `nop`.
        partition: a name from `list_partitioners()` or a partitioner. "auto": `min_cut`.
        check: compare outputs, gradients and mutated inputs with eager on the first call of each signature. That runs
            `fn` itself once more, on copies of its inputs.
        capture: "aot" traces `fn` directly; "dynamo" lets TorchDynamo capture it first, for functions whose Python
            code depends on the values of tensors.
        dynamic: leave the sizes of arguments open where the function allows it.
        on_error: "raise", or "eager": warn and run the function uncompiled.

    While a function is compiled, that is in its first call for each kind of input, stand-ins are in the places of the
    tensors that it captures. Other threads may call compiled functions meanwhile, but not the uncompiled module or
    function, nor anything that runs eagerly and shares those tensors.

    Raises:
        UnknownNameError, UnavailableError: the backend or partitioner cannot be had.
        TypeError, ValueError: an argument is none of the above.
    """
    options = _options(backend, partition, check, capture, dynamic, on_error)
    if fn is None:
        return functools.partial(compile, **options)
    if isinstance(fn, nn.Module):
        from aotkit.modules import compile_module

        return compile_module(fn, options)
    return CompiledFunction(fn, **options)


def _options(
    backend: str | AnyBackend, partition: str | Partitioner, check: bool, capture: str, dynamic: bool, on_error: str
) -> dict[str, Any]:
    return {
        "backend": backend, "partition": partition, "check": check,
        "capture": capture, "dynamic": dynamic, "on_error": on_error,
    }  # fmt: skip


def recipe_of(fn: Any, backend: str | AnyBackend, partition: str | Partitioner, dynamic: bool) -> Recipe:
    """Resolve the names; what cannot be had fails here, before any tracing."""
    backend = _default_backend() if backend == "auto" else backend
    partition = "min_cut" if partition == "auto" else partition
    return Recipe(
        fn=fn,
        name=getattr(fn, "__qualname__", type(fn).__name__),
        backend=get_backend(backend),
        backend_name=name_of(backend),
        partition=get_partitioner(partition),
        partition_name=name_of(partition),
        dynamic=dynamic,
    )


def _default_backend() -> str:
    return "inductor" if any(shutil.which(compiler) for compiler in ("c++", "g++", "clang++", "cl")) else "nop"


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
        backend: str | AnyBackend,
        partition: str | Partitioner,
        check: bool,
        capture: Capture,
        dynamic: bool,
        on_error: OnError,
    ) -> None:
        if not callable(fn):
            raise TypeError(f"compile takes a function or an nn.Module, not {fn!r}.")
        _one_of("capture", capture, ("aot", "dynamo"))
        _one_of("on_error", on_error, ("raise", "eager"))
        # The attributes of a callable object are its own state; those of a function describe it.
        functools.update_wrapper(self, fn, updated=("__dict__",) if inspect.isroutine(fn) else ())
        self._options = _options(backend, partition, check, capture, dynamic, on_error)
        self._recipe = recipe_of(fn, backend, partition, dynamic)
        self._check = check
        self._on_error = on_error
        self._parameters = Parameters(fn)
        self._families = Families(dynamic)
        self._verdicts = EagerVerdicts(self._recipe.name)
        self._recompilations = Recompilations(self._recipe.name)
        self._dynamo = DynamoFunction(self._recipe, check, on_error) if capture == "dynamo" else None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return self.__wrapped__(*args, **kwargs)
        if (reason := aot.why_eager()) is not None:
            self._verdicts.log(reason)
            return self.__wrapped__(*args, **kwargs)
        return self._call(args, kwargs)  # type: ignore[no-any-return]

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

    def graphs(self, *args: P.args, **kwargs: P.kwargs) -> Graphs:
        """The graphs that a call with these arguments runs; compiles them if need be.

        Raises:
            TraceError: such a call runs eagerly, or in several pieces; the message says why.
        """
        self._raise_if_eager(aot.why_eager())
        if self._dynamo is not None:
            return self._dynamo.graphs(args, kwargs)
        return self._entry(args, kwargs).graphs

    def report(self, *args: P.args, **kwargs: P.kwargs) -> CheckReport:
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

    def _raise_if_eager(self, reason: str | None) -> None:
        if reason is not None:
            raise TraceError(f"{self._recipe.name!r} runs eagerly for these inputs: {reason}.")

    def _entry(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry:
        try:
            entry, _ = self._prepare(args, kwargs)
        except EagerOnly as e:
            self._raise_if_eager(str(e))
            raise
        if isinstance(entry, AotkitError):
            raise entry
        return entry

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._dynamo is not None:
            return self._dynamo(*args, **kwargs)
        try:
            entry, tensors = self._prepare(args, kwargs)
        except EagerOnly as e:
            self._verdicts.log(str(e))
        else:
            if isinstance(entry, Entry):
                return entry.run(tensors)
        return self.__wrapped__(*args, **kwargs)

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Entry | AotkitError, Sequence[Tensor]]:
        """A valid entry and its flat inputs; the error instead of the entry if compiling failed before."""
        arguments = flatten(*self._parameters.canonical(args, kwargs))
        roots = (self.__wrapped__, *arguments.objects)
        key = aot.environment(), arguments.key
        begun = Progress.begun
        undisturbed = Progress.ended == begun
        found = self._families.find(roots, key, arguments.tensors)
        # Another thread that compiles may have put stand-ins where this one looked for captured tensors.
        if found is None or not undisturbed or Progress.begun != begun:
            self._verdicts.consult(arguments)
            with aot.COMPILE_LOCK, self._verdicts.learning(arguments):
                found = self._families.find(roots, key, arguments.tensors) or self._compile(roots, key, arguments)
        return found

    def _compile(
        self, roots: Sequence[Any], key: Hashable, arguments: Arguments
    ) -> tuple[Entry | AotkitError, Sequence[Tensor]]:
        names, object_names = self._parameters.names_of(arguments)
        root_names = [_root_name(self.__wrapped__), *object_names]
        captures, walk = find_captures(roots, root_names)
        signature = Signature(self._recipe, arguments, walk, names)
        for tensor in signature.tensors:
            if (reason := aot.why_eager_tensor(tensor)) is not None:
                raise EagerOnly(reason)
        entry = self._try_entry(signature)
        if isinstance(entry, Entry) or not _out_of_memory(entry):
            self._families.add(roots, key, arguments.tensors, captures, signature.captured, entry)
        self._recompilations.count(lambda: describe(self._parameters, arguments, signature, walk))
        return entry, signature.tensors

    def _try_entry(self, signature: Signature) -> Entry | AotkitError:
        try:
            want = outcome_in_eager(signature) if self._check else None
            return _new_entry(self._recipe, signature, want)
        except AotkitError as e:
            if self._on_error == "raise":
                raise
            warn_of_fallback(self._recipe.name, e)
            return e


def _new_entry(recipe: Recipe, signature: Signature, want: Outcome | None) -> Entry:
    try:
        entry = Entry(recipe, signature, ran_in_eager=want is not None)
        if want is not None:
            entry.check(recipe, signature, want)
    except AotkitError:
        if not recipe.dynamic:
            raise
        # Perhaps because of the sizes that were left open.
        entry = _new_entry(dataclasses.replace(recipe, dynamic=False), signature, want)
        entry.fix_sizes(signature.tensors)
    return entry


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
