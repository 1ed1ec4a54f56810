"""Whether a candidate computes what eager does. None is timed before that is certain."""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from aotkit.compiled import CompiledFunction, Explanation, function_of
from aotkit.errors import AotkitError, MismatchError
from aotkit.inspection import Graphs
from aotkit.tuning.candidates import Candidate
from aotkit.tuning.recipe import as_compiled
from aotkit.tuning.workload import Workload

Made = Callable[..., Any]  # what `compile` gives for the workload's function: a function, or a module
PLACES = (0.0, 0.5, 1.0)  # of special values, as parts of a tensor
LARGE = 16  # times the largest value


class Unfit(Exception):
    """Why a candidate is not to be chosen."""


def made(
    candidate: Candidate,
    workload: Workload,
    options: dict[str, Any],
    accept: Callable[[Sequence[Graphs]], None] | None = None,
) -> Made:
    """The workload's function, compiled as a candidate says, and compared with eager.

    The check of the first call would look for the culprit, which nobody asks for here.

    Args:
        options: of `compile`, those that all candidates have, as far as they are not the defaults.
        accept: called with what is compiled before it is compared, which takes long; may raise `Unfit`.

    Raises:
        Unfit: it computes something else, or runs eagerly, or it could not be found out.
    """
    with said_as_a_reason():
        compiled: Made = as_compiled(workload.fn, {**options, **candidate.for_compile(), "check": False})
        workload.prepare()
        workload.call(compiled)
        if accept is not None:
            accept(graphs_of(compiled, workload))
        require_right(compiled, workload)
        if candidate.instead:
            _require_compiled(graphs_of(compiled, workload), candidate)
    return compiled


def graphs_of(compiled: Made, workload: Workload) -> Sequence[Graphs]:
    """All that a call of it runs."""
    workload.prepare()
    explanation: Explanation = workload.call(function_of(compiled).explain)
    return explanation.all_graphs


def _require_compiled(all_graphs: Sequence[Graphs], candidate: Candidate) -> None:
    """What does not compile a region leaves it as it is, which another candidate does without saying that it were this.

    Raises:
        Unfit: a backend has not compiled a region that it was to have.
    """
    regions = [region for graphs in all_graphs for found in graphs.regions.values() for region in found.regions]
    failures = [region.failure for region in regions if region.digest in candidate.instead and region.failure]
    if failures:
        raise Unfit(f"a region did not compile: {failures[0]}")


def require_right(compiled: Made, workload: Workload) -> None:
    """Compare what is compiled with eager once more: for these values, others, and with NaN and large ones.

    Raises:
        Unfit: it computes something else, or it could not be found out.
    """
    with said_as_a_reason():
        function = function_of(compiled)
        workload.prepare()
        if (reason := workload.call(function.explain).eager) is not None:
            raise Unfit(f"it runs eagerly: {reason}")
        workload.prepare()
        _compare(function, workload.args, workload.kwargs)
        args, kwargs = workload.with_inputs(with_special_values)
        if _runs(workload.fn, args, kwargs):
            _compare(function, *workload.with_inputs(with_special_values))


def _compare(compiled: CompiledFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    report = compiled.check(*args, **kwargs)
    if report.undecided:
        undecided = next(c for c in report.comparisons if c.undecided is not None)
        raise Unfit(f"{undecided.what} could not be checked: {undecided.undecided}")


@torch.no_grad()
def with_special_values(x: Tensor) -> Tensor:
    """The same with large numbers at its ends and a NaN in its middle, where there is room for other values besides.

    Infinities are left out: eager's own kernels do not agree about them, as those of GELU.
    """
    if x.is_floating_point() and x.numel() > len(PLACES):
        large = LARGE * x.nan_to_num().abs().max()
        for place, value in zip(PLACES, (float(large), math.nan, -float(large)), strict=True):
            index = torch.unravel_index(torch.tensor(int(place * (x.numel() - 1))), x.shape)
            x[tuple(map(int, index))] = value
    return x


def _runs(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        fn(*args, **kwargs)
    except Exception:  # it looks at its values
        return False
    return True


@contextmanager
def said_as_a_reason() -> Iterator[None]:
    """What goes wrong is a reason; what is warned of is, or does not matter."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Unfit:
        raise
    except Exception as e:
        raise Unfit(in_one_line(e)) from e


def in_one_line(error: Exception) -> str:
    """What an error says first."""
    report = getattr(error, "report", None) if isinstance(error, MismatchError) else None
    if report is not None:
        return next(f"{c.what} {c.problem}" for c in report.comparisons if c.problem)
    line = (str(error).splitlines() or [""])[0]
    return line if isinstance(error, AotkitError) else f"{type(error).__name__}: {line}"
