"""`autotune`: how one function should run, found out by measuring."""

from collections.abc import Callable, Sequence
from typing import Any, get_args

from torch import Tensor

from aotkit.launches import Tell, silent
from aotkit.random import random_state
from aotkit.torch_private.dispatch import tree_leaves
from aotkit.torch_private.tensors import why_eager_tensor
from aotkit.tuning.candidates import Candidate, candidates_of
from aotkit.tuning.known import Key, key_of
from aotkit.tuning.recipe import DEFAULTS, Trial, TunedRecipe
from aotkit.tuning.search import Objective, Search
from aotkit.tuning.verdicts import Unfit, made
from aotkit.tuning.workload import Workload

BUDGET = 60.0


def autotune(
    fn: Callable[..., Any],
    /,
    *args: Any,
    objective: Objective = "time",
    budget: float = BUDGET,
    candidates: Sequence[Any] | None = None,
    progress: Tell = silent,
    **kwargs: Any,
) -> TunedRecipe:
    """Find out by measuring how `fn(*args, **kwargs)` should run, forward and backward.

    Candidates are eager, backends, lists of them, partitioners and their limits, and other backends for single kinds of
    regions. Each is compared with eager before it is timed, also for other values and with NaN among them; the answer
    is, once more, at the end. What differs, or where that could not be found out, is never chosen. All that are right
    take turns; the slower half goes after seven rounds, fourteen, and so on. The fastest are timed once more, and the
    simplest of those that are not surely slower is the answer. Answers are kept for the next process, by the graph and
    the machine; for a graph whose sizes are alike one is carried over. Both are compared with eager again.

    It works on copies of the arguments, and of `fn` if that is a module or a method of one. It calls `fn` many times:
    what a plain function changes outside of those stays changed.

    Args:
        objective: "time": of a step; "peak": of its memory, and time where that is the same; "frontier": a recipe for
            each candidate that nothing else beats in both.
        budget: seconds. What has not begun by then is left out; what has begun is finished.
        candidates: "eager", backends, lists of backends, or dicts of options of `compile`; None: all that can be had.
            Where they are given, nothing is kept.
        progress: called with a line of text before each thing that takes long.

    Raises:
        ValueError: there is no such objective.
    """
    if objective not in get_args(Objective):
        raise ValueError(f"objective must be one of {', '.join(map(repr, get_args(Objective)))}, not {objective!r}.")
    given = None if candidates is None else candidates_of(candidates)
    return tuned(fn, args, kwargs, {}, objective, budget, given, progress)


def tuned(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    options: dict[str, Any],
    objective: Objective = "time",
    budget: float = BUDGET,
    candidates: Sequence[Candidate] | None = None,
    progress: Tell = silent,
) -> TunedRecipe:
    """The same.

    Args:
        options: of `compile`, which all candidates have.
    """
    name = getattr(fn, "__qualname__", type(fn).__name__)
    options = {**DEFAULTS, **options}
    if (reason := _why_not(args, kwargs)) is not None:
        return TunedRecipe(fn, name, Candidate(None), origin=f"not measured: {reason}", options=options)
    with random_state():
        workload = Workload(fn, args, kwargs)
        try:
            key = None
            if candidates is None:
                progress(f"{name}: tracing")
                key = _key(workload, objective, options)
            if key is not None and (before := _known(key, workload, options)) is not None:
                trial, origin = before
                return TunedRecipe(fn, name, trial.candidate, [trial], origin, options=options)
            search = Search(workload, name, objective, budget, options, progress)
            right = search.run(candidates)
            best = next(right, Trial(Candidate(None)))
            frontier = _frontier([best, *right]) if objective == "frontier" else ()
        finally:
            workload.restore()
    if key is not None and objective != "frontier":
        key.note(best.candidate)
    points = [TunedRecipe(fn, name, trial.candidate, [trial], options=options) for trial in frontier]
    return TunedRecipe(fn, name, best.candidate, search.trials, frontier=points, options=options)


def _why_not(args: Sequence[Any], kwargs: dict[str, Any]) -> str | None:
    """Why such a call runs eagerly in any case."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    return next(filter(None, map(why_eager_tensor, tensors)), None)


def _key(workload: Workload, objective: Objective, options: dict[str, Any]) -> Key | None:
    try:
        return key_of(workload, [objective, repr(sorted(options.items(), key=str))], options)
    except Unfit:
        return None


def _known(key: Key, workload: Workload, options: dict[str, Any]) -> tuple[Trial, str] | None:
    """An answer from before, if what it says is right here."""
    if (found := key.answer()) is None:
        return None
    candidate, origin = found
    try:
        if candidate.options is not None:
            made(candidate, workload, options)
    except Unfit:
        return None
    return Trial(candidate), origin


def _frontier(trials: Sequence[Trial]) -> list[Trial]:
    """Those with less memory than all that are faster; the fastest first."""
    found: list[Trial] = []
    for trial in trials:
        if not found or (trial.peak or 0) < (found[-1].peak or 0):
            found.append(trial)
    return found
