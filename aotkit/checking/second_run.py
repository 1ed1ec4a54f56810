"""Run a compiled function again: with other values and sizes, and in another thread at the same time as before."""

import threading
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from aotkit.checking.copies import copy_inputs
from aotkit.checking.in_pieces import are_finite, checksum
from aotkit.checking.other_values import SEED, far_values, near_values
from aotkit.checking.runs import Outcome, Plan, Run, run_on_copies, unmoved, without_graph
from aotkit.random import random_state
from aotkit.runtime import COMPILE_LOCK
from aotkit.torch_private.dispatch import pytree
from aotkit.torch_private.switches import environment

CHANGES = (far_values, near_values)
# Seconds to wait for a thread, which may itself be waiting for something that this one holds.
PATIENCE = 60.0


@dataclass
class SecondRun:
    """What happened.

    Attributes:
        inputs: other ones than those of the first run.
        plan: how eager ran.
        want: what eager gives.
        got: what the compiled function gives, or the error that it raises.
        third: outputs for the inputs of the first run; None if there are none.
        beside: whether those were computed in another thread at the same time.
        resized: whether the inputs have other sizes.
        overwritten: whether results of the first run changed meanwhile.
    """

    inputs: Sequence[Tensor]
    plan: Plan
    want: Outcome
    got: Outcome | Exception
    third: Any
    beside: bool
    resized: bool
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
    before = _checksums(results)
    attempts = ((inputs, replace(plan, change=change)) for inputs in (*resized, tensors) for change in CHANGES)
    runs = ((inputs, plan, _in_eager(eager, inputs, plan, first)) for inputs, plan in attempts)
    inputs, plan, want = next((run for run in runs if run[2] is not None), (tensors, plan, None))
    if want is None:
        return None

    third = _Third(compiled, tensors, plan.generators)
    if beside and not first.draws:  # threads share the generators: which of two draws first is anybody's guess
        third.begin()
    plan_of_compiled = replace(plan.compiled(want), before_backward=third.finish)
    try:
        got: Outcome | Exception = run_on_copies(compiled, inputs, plan_of_compiled)
    except Exception as e:
        got = e
    finally:
        third.wait()
    overwritten = before != _checksums(results)
    return SecondRun(inputs, plan, want, got, third.outputs, third.began, inputs is not tensors, overwritten)


def _in_eager(eager: Run, inputs: Sequence[Tensor], plan: Plan, first: Outcome) -> Outcome | None:
    """What eager gives for other values; None if it does not take them."""
    try:
        found = run_on_copies(eager, inputs, plan)
        return found if plan.change is near_values or _as_finite(found, first) else None
    except Exception:
        return None


def _as_finite(second: Outcome, first: Outcome) -> bool:
    """Whether only such values are NaN or infinite as were before: what gives others is no value for this function."""
    values = zip(*(pytree.tree_leaves((o.outputs, o.gradients)) for o in (second, first)), strict=True)
    pairs = [(a, b) for a, b in values if isinstance(a, Tensor) and not a.is_meta]
    return all(are_finite(a) or not are_finite(b) for a, b in pairs)


def _checksums(results: Any) -> list[int | None]:
    return [checksum(t) for t in pytree.tree_leaves(results) if isinstance(t, Tensor)]


class _Third:
    """A run as the first, forward only; it may begin in another thread.

    Attributes:
        outputs: what came of it; None if it raised there.
        began: whether it ran in another thread.
    """

    def __init__(self, compiled: Run, tensors: Sequence[Tensor], generators: Sequence[torch.Generator]) -> None:
        self._compiled = compiled
        self._tensors = tensors
        self._generators = generators
        self._thread: threading.Thread | None = None
        self.outputs: Any = None
        self.began = False

    def _run(self) -> None:
        with self._compiled(copy_inputs(self._tensors)[1]) as outputs:
            self.outputs = without_graph(outputs)

    def begin(self) -> None:
        """Begin in a thread with this one's switches, where it can have those."""
        switches, grad, inference = environment(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        has_stream = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        stream = torch.cuda.stream(torch.cuda.current_stream()) if has_stream else nullcontext()

        def run() -> None:
            with COMPILE_LOCK.awaited(), torch.set_grad_enabled(grad), torch.inference_mode(inference), stream:
                if environment() == switches:
                    self.began = True
                    with suppress(Exception):  # as it would be for the user: an error, and no wrong value
                        self._run()

        self._thread = threading.Thread(target=run, name="aotkit check", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait for it, or where it could not be run in a thread, run it now."""
        self.wait()
        if not self.began:
            with random_state(), unmoved(self._generators):
                self._run()

    def wait(self) -> None:
        """Wait for the thread, if there is one."""
        if self._thread is not None:
            self._thread.join(PATIENCE)
            self.began = self.began or self._thread.is_alive()
