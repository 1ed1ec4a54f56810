"""Run a compiled function again: with other values and sizes, and in another thread at the same time as before."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from aotkit.aot import pytree
from aotkit.aot.environment import environment
from aotkit.copies import Outcome, Plan, Run, run_on_copies
from aotkit.other_values import SEED, far_values, near_values

CHANGES = (far_values, near_values)


@dataclass
class SecondRun:
    """What happened.

    Attributes:
        inputs: other ones than those of the first run.
        plan: how eager ran.
        want: what eager gives.
        got: what the compiled function gives, or the error that it raises.
        third: what it gives for the inputs of the first run; None if that raises in another thread.
        overwritten: whether results of the first run changed meanwhile.
    """

    inputs: Sequence[Tensor]
    plan: Plan
    want: Outcome
    got: Outcome | Exception
    third: Outcome | None
    overwritten: bool


def run_again(
    compiled: Run,
    eager: Run,
    tensors: Sequence[Tensor],
    resized: Sequence[Sequence[Tensor]],
    first: Outcome,
    plan: Plan,
    results: Any = (),
    beside: bool = True,
) -> SecondRun | None:
    """Run a second and a third time; None if eager does not take other values.

    Args:
        tensors: the inputs of the first run.
        resized: others of other sizes, one set of which will do.
        first: of eager.
        plan: how eager ran.
        results: of the first compiled run, of which nothing may change.
        beside: run the third time in another thread, at the same time as the second time.
    """
    plan = replace(plan, seed=SEED if first.draws else None)
    before = _fingerprint(results)
    attempts = ((inputs, replace(plan, change=change)) for inputs in (*resized, tensors) for change in CHANGES)
    runs = ((inputs, plan, _in_eager(eager, inputs, plan, first)) for inputs, plan in attempts)
    inputs, plan, want = next((run for run in runs if run[2] is not None), (tensors, plan, None))
    if want is None:
        return None

    others: list[Outcome | None] = []

    def third() -> Outcome:
        return run_on_copies(compiled, tensors, Plan(plan.generators, backward=False))

    def finish() -> None:
        # An error in another thread would be one for the user, too: no wrong value.
        if running is None or (running.exception() is None and running.result() is None):
            others.append(third())
        else:
            others.append(None if running.exception() else running.result())

    with ThreadPoolExecutor(1) as threads:
        # Threads share the generators: which of two draws first is anybody's guess.
        running = threads.submit(_with_switches_as_here(third)) if beside and not first.draws else None
        try:
            plan_of_compiled = replace(plan.compiled(), before_backward=finish)
            got: Outcome | Exception = run_on_copies(compiled, inputs, plan_of_compiled)
        except Exception as e:
            got = e
    return SecondRun(inputs, plan, want, got, others[0] if others else None, before != _fingerprint(results))


def _in_eager(eager: Run, inputs: Sequence[Tensor], plan: Plan, first: Outcome) -> Outcome | None:
    """What eager gives for other values; None if it does not take them."""
    try:
        found = run_on_copies(eager, inputs, plan)
    except Exception:
        return None
    return found if plan.change is near_values or _as_finite(found, first) else None


def _as_finite(second: Outcome, first: Outcome) -> bool:
    """Whether only such values are NaN or infinite as were before: what gives others is no value for this function."""
    values = zip(*(pytree.tree_leaves((o.outputs, o.gradients)) for o in (second, first)), strict=True)
    pairs = [(a, b) for a, b in values if isinstance(a, Tensor) and not a.is_meta]
    return all(bool(a.isfinite().all()) or not b.isfinite().all() for a, b in pairs)


def _fingerprint(results: Any) -> list[str]:
    """Numbers that change when a result does."""
    tensors = [t.detach() for t in pytree.tree_leaves(results) if isinstance(t, Tensor) and t.layout is torch.strided]
    return [str((t.abs() if t.is_complex() else t).double().abs().nan_to_num().sum()) for t in tensors if not t.is_meta]


def _with_switches_as_here(run: Callable[[], Outcome]) -> Callable[[], Outcome | None]:
    """The same for another thread; gives None if that cannot have this thread's switches."""
    switches, grad, inference = environment(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    has_stream = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    stream = torch.cuda.stream(torch.cuda.current_stream()) if has_stream else nullcontext()

    def run_there() -> Outcome | None:
        with torch.set_grad_enabled(grad), torch.inference_mode(inference), stream:
            return run() if environment() == switches else None

    return run_there
