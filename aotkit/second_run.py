"""Run a compiled function again: with other values and sizes, and in another thread at the same time as before."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from aotkit.aot import COMPILE_LOCK, pytree
from aotkit.aot.environment import environment
from aotkit.copies import Outcome, Plan, Run, run_on_copies
from aotkit.other_values import SEED, far_values, near_values

CHANGES = (far_values, near_values)
# Seconds to wait for a thread, which may be waiting for something that this one holds.
PATIENCE = 60.0


@dataclass
class SecondRun:
    """What happened.

    Attributes:
        inputs: other ones than those of the first run.
        plan: how eager ran.
        want: what eager gives.
        got: what the compiled function gives, or the error that it raises.
        third: what it gives for the inputs of the first run; None if `got` is an error.
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

    third = _Third(lambda: run_on_copies(compiled, tensors, Plan(plan.generators, backward=False)))
    if beside and not first.draws:  # threads share the generators: which of two draws first is anybody's guess
        third.begin()
    plan_of_compiled = replace(plan.compiled(), before_backward=third.finish)
    try:
        got: Outcome | Exception = run_on_copies(compiled, inputs, plan_of_compiled)
    except Exception as e:
        got = e
    return SecondRun(inputs, plan, want, got, third.outcome, before != _fingerprint(results))


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


class _Third:
    """A run that may begin in another thread.

    Attributes:
        outcome: what came of it, once it is finished.
    """

    def __init__(self, run: Callable[[], Outcome]) -> None:
        self._run = run
        self._thread: Future[Outcome | None] | None = None
        self.outcome: Outcome | None = None

    def begin(self) -> None:
        """Begin in a thread with this one's switches, where it can have those."""
        switches, grad, inference = environment(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        has_stream = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        stream = torch.cuda.stream(torch.cuda.current_stream()) if has_stream else nullcontext()

        def run() -> Outcome | None:
            with COMPILE_LOCK.awaited(), torch.set_grad_enabled(grad), torch.inference_mode(inference), stream:
                return self._run() if environment() == switches else None

        threads = ThreadPoolExecutor(1)
        self._thread = threads.submit(run)
        threads.shutdown(wait=False)

    def finish(self) -> None:
        """Wait for it, or where it could not be run in a thread, run it now."""
        if self._thread is not None:
            try:
                self.outcome = self._thread.result(PATIENCE)
            except Exception:  # as it would be for the user: an error, and no wrong value
                self.outcome = None
        self.outcome = self.outcome or self._run()
