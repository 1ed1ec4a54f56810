"""`compile`: from a Python function or module to one that runs compiled forward and backward graphs."""

import functools
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar, Unpack, get_args, overload

from torch import nn

from aotkit.capture import Check, Randomness, require_check
from aotkit.compiled import CompiledFunction, compile_callable
from aotkit.interfaces import Partitioner
from aotkit.registry import AUTOTUNE, BackendSpec
from aotkit.tuning import TunedFunction

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=nn.Module)
Capture = Literal["auto", "aot", "dynamo"]
OnError = Literal["raise", "eager"]


class Options(TypedDict, total=False):
    """See `compile`."""

    backend: BackendSpec
    partition: str | Partitioner
    check: Check
    capture: Capture
    dynamic: bool | None
    random: Randomness
    on_error: OnError
    strict: bool


@overload
def compile(fn: M, /, **options: Unpack[Options]) -> M: ...  # type: ignore[overload-overlap]
@overload
def compile(fn: Callable[P, R], /, **options: Unpack[Options]) -> CompiledFunction[P, R]: ...
@overload
def compile(**options: Unpack[Options]) -> Callable[[Callable[P, R]], CompiledFunction[P, R]]: ...
def compile(
    fn: Any = None,
    /,
    *,
    backend: BackendSpec = "auto",
    partition: str | Partitioner = "auto",
    check: Check = True,
    capture: Capture = "auto",
    dynamic: bool | None = None,
    random: Randomness = "shared",
    on_error: OnError = "raise",
    strict: bool = False,
) -> Any:
    """Compile a function or module ahead of time: `compile(fn)`, `@compile` or `@compile(backend="nop")`.

    Each new kind of input (structure, shapes, dtypes, constants, gradient mode, ...) compiles once, on its first
    call; all live side by side, up to 256 for one function. `explain` tells how a call runs.

    Args:
        fn: takes and returns tensors, nested in lists, tuples and dicts as you like.
        backend: a name from `list_backends()`, `dynamo:NAME`, a `Backend`, a graph compiler, or a list of such, which
            share each graph (see `by_region`). "auto": by the devices of a graph; "autotune": by measuring.
        partition: a name from `list_partitioners()` or a partitioner. "auto": `min_cut`.
        check: compare outputs, gradients and mutated inputs with eager on the first call of each signature, and once
            more with other values. That runs `fn` itself about three times, on copies of its inputs. "later": calls run
            eagerly, captured by TorchDynamo, until another process has compiled, too; the next one compiles and checks.
        capture: "aot" traces `fn` directly, with guards on all that it reads, and refuses what one graph cannot stand
            for. "dynamo" lets TorchDynamo capture it, in several graphs where its Python code depends on the values of
            tensors. "auto": directly where it is plain code of the user's own, else by TorchDynamo.
        dynamic: leave the sizes of arguments open where the function allows it. None: those that have changed from one
            call to another; a function that is traced directly is compiled for two fixed sizes before.
        random: "shared": random operators become arithmetic on one seed for each call, which is drawn from torch's CPU
            generator. Every backend, and the eager run of the check, then draws the same numbers; they are others than
            uncompiled eager's. "torch": torch's own operators and generators, with eager's numbers. So do in either
            case eager calls, calls with a `generator=` and what `aotkit/random/operators.py` does not list.
        on_error: "raise", or "eager": warn and run the function uncompiled.
        strict: raise TraceError in place of the warning `EagerCallWarning` where a whole call runs uncompiled though
            nothing failed. Where TorchDynamo captures the function, that is known after the call has been made.

    While a function is compiled, in its first call for each kind of input, stand-ins are in the places of tensors that
    it captures. Other threads may call compiled functions meanwhile, but nothing uncompiled that shares those tensors.

    Raises:
        UnknownNameError, UnavailableError: the backend or partitioner cannot be had.
        TypeError, ValueError: an argument is none of the above.
    """
    choices = ("capture", capture, Capture), ("random", random, Randomness), ("on_error", on_error, OnError)
    for option, value, literal in choices:
        if value not in (allowed := get_args(literal)):
            raise ValueError(f"{option} must be one of {', '.join(map(repr, allowed))}, not {value!r}.")
    require_check(check, capture)
    options: Options = {
        "backend": backend, "partition": partition, "check": check, "capture": capture, "dynamic": dynamic,
        "random": random, "on_error": on_error, "strict": strict,
    }  # fmt: skip
    if fn is None:
        return functools.partial(compile, **options)
    make: Any = TunedFunction if backend == AUTOTUNE else CompiledFunction
    return compile_callable(fn, options, make)
