"""Calls of what plug-ins provide: their errors as CompileErrors, what their compiled functions take and return."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from aotkit.errors import AotkitError, BudgetError, CompileError
from aotkit.interfaces import Boxed
from aotkit.passes import results_of
from aotkit.runtime import relay
from aotkit.stages.facts import differ, result_kind, value_of
from aotkit.torch_private.fx import boxed

MOST_CODE_LINES = 60


@contextmanager
def blaming(what: str, gm: GraphModule) -> Iterator[None]:
    """Turn whatever a plug-in raises into a CompileError that shows the graph, but for what needs no graph."""
    try:
        yield
    except CompileError as e:
        if e.graph is not None or isinstance(e, BudgetError):
            raise
        raise _about(gm, f"{what}: {e}") from e
    except AotkitError:
        raise
    except Exception as e:
        raise _about(gm, f"{what}: {type(e).__name__}: {e}") from e


def _about(gm: GraphModule, reason: str) -> CompileError:
    lines = gm.print_readable(print_output=False).splitlines()
    if len(lines) > MOST_CODE_LINES:
        lines = [*lines[:MOST_CODE_LINES], f"... {len(lines) - MOST_CODE_LINES} more lines: see the error's .graph"]
    error = CompileError("\n".join([reason, *lines]))
    error.graph, error.reason = gm, reason
    return error


@dataclass(frozen=True)
class Product:
    """What a compiler made of a graph, and that graph."""

    run: Any
    graph: GraphModule


def boxed_call(run: Any) -> Boxed:
    """What a compiler returned, as a function of one list of inputs, which it may empty.

    Raises:
        CompileError: it is no function.
    """
    if not callable(run):
        raise CompileError(f"it returned {type(run).__name__}, not a callable")
    if getattr(run, "_boxed_call", False):
        return run  # type: ignore[no-any-return]
    if isinstance(run, GraphModule):
        return boxed(run)

    def call(args: list[Any]) -> Sequence[Any]:
        values = tuple(args)
        args.clear()
        return run(*values)  # type: ignore[no-any-return]

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def checked_once(run: Boxed, later: Boxed, gm: GraphModule, blame: Callable[[], AbstractContextManager[None]]) -> Boxed:
    """Compare the number, shapes, dtypes and devices of the first run's outputs with what the graph promises.

    Args:
        later: what runs from the second time on.
    """
    promised = [*map(value_of, results_of(gm))]

    def first(args: list[Any]) -> Sequence[Any]:
        with blame():
            results = run(args)
            _compare(results, promised)
        call.target = later
        return results

    call = relay(first)
    return call  # type: ignore[no-any-return]


def _compare(results: Any, promised: Sequence[Any]) -> None:
    if not isinstance(results, list | tuple):
        raise CompileError(f"its compiled function returned {type(results).__name__}, not a list or tuple of outputs")
    if len(results) != len(promised):
        raise CompileError(f"its compiled function returned {len(results)} outputs; the graph has {len(promised)}")
    for i, (got, want) in enumerate(zip(results, promised, strict=True)):
        are_numbers = not isinstance(got, Tensor | None) and not isinstance(want, Tensor | None)
        if not are_numbers and differ(result_kind(got), result_kind(want)):
            raise CompileError(
                f"its compiled function returned {result_kind(got)} as output {i}; the graph has {result_kind(want)}"
            )
