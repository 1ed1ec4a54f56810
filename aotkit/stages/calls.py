"""Calls of what plug-ins provide: their errors as CompileErrors, what their compiled functions take and return."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from aotkit.errors import AotkitError, BudgetError, CompileError
from aotkit.interfaces import Boxed
from aotkit.runtime import relay
from aotkit.torch_private.fx import boxed

MOST_CODE_LINES = 60


class Blame:
    """Turns whatever a plug-in raises into a CompileError that shows the graph, but for what needs no graph."""

    def __init__(self, what: str, gm: GraphModule) -> None:
        self._what = what
        self._gm = gm

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if not isinstance(error, Exception) or (isinstance(error, AotkitError) and not isinstance(error, CompileError)):
            return
        if isinstance(error, BudgetError) or (isinstance(error, CompileError) and error.graph is not None):
            return
        detail = str(error) if isinstance(error, CompileError) else f"{type(error).__name__}: {error}"
        reason = f"{self._what}: {detail}"
        wrapped = CompileError(f"{reason}\n{_code(self._gm)}")
        wrapped.graph, wrapped.reason = self._gm, reason
        raise wrapped from error


def _code(gm: GraphModule) -> str:
    lines = gm.print_readable(print_output=False).splitlines()
    if len(lines) > MOST_CODE_LINES:
        lines = [*lines[:MOST_CODE_LINES], f"... {len(lines) - MOST_CODE_LINES} more lines: see the error's .graph"]
    return "\n".join(lines)


@dataclass(frozen=True)
class Product:
    """What a compiler made of a graph, and that graph."""

    run: Any
    graph: GraphModule


def callable_of(run: Any) -> Callable[..., Any]:
    """What a compiler returned, if it can be called; else a CompileError."""
    if not callable(run):
        raise CompileError(f"it returned {type(run).__name__}, not a callable")
    return run  # type: ignore[no-any-return]


def boxed_call(run: Any) -> Boxed:
    """What a compiler returned, as a function of one list of inputs, which it may empty.

    Raises:
        CompileError: it is no function.
    """
    run = callable_of(run)
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


def outside_dynamo(run: Boxed) -> Boxed:
    """The same, whose Python Dynamo does not look at where a function that it captures calls it: in a backward pass."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def call(args: list[Any]) -> Sequence[Any]:
        return run(args)

    call._boxed_call = True
    return call  # type: ignore[no-any-return]


def results_of(gm: GraphModule) -> Sequence[Any]:
    """What a graph returns."""
    (output,) = gm.graph.find_nodes(op="output")
    return output.args[0]  # type: ignore[no-any-return]


def checked_once(run: Boxed, later: Boxed, gm: GraphModule, blame: Callable[[], Blame]) -> Boxed:
    """Compare the number, shapes, dtypes and devices of the first run's outputs with what the graph promises.

    Args:
        later: what runs from the second time on.
    """
    promised = [n.meta.get("val") if isinstance(n, torch.fx.Node) else n for n in results_of(gm)]

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
        if _kind(got) != _kind(want) or (isinstance(want, Tensor) and _differ(got.shape, want.shape)):
            raise CompileError(
                f"its compiled function returned {_show(got)} as output {i}; the graph has {_show(want)}"
            )


def _kind(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value is None
    # Fused attention on CUDA returns its random seeds on the CPU, whatever torch's description of it says.
    return value.dtype, value.device if value.dim() else None


def _differ(got: Sequence[Any], want: Sequence[Any]) -> bool:
    return len(got) != len(want) or any(isinstance(w, int) and g != w for g, w in zip(got, want, strict=True))


def _show(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"a tensor of {value.dtype}, shape {list(value.shape)}, on {value.device}"
