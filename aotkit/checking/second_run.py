"""Run a compiled function again: with other values and sizes, and in another thread at the same time as before."""

import threading
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from aotkit.checking.comparison import Comparison, compare_values
from aotkit.checking.copies import copy_inputs
from aotkit.checking.in_pieces import are_finite, checksum
from aotkit.checking.judgement import Judgement, doubted, judge
from aotkit.checking.other_values import SEED, far_values, near_values
from aotkit.checking.runs import Baseline, Outcome, Plan, Run, run_on_copies, unmoved, without_graph
from aotkit.random import random_state
from aotkit.runtime import COMPILE_LOCK
from aotkit.torch_private.dispatch import pytree
from aotkit.torch_private.switches import environment

QUITE_ELSE = 100  # times what rounding may be
CHANGES = (far_values, near_values)
# Seconds to wait for a thread, which may itself be waiting for something that this one holds.
PATIENCE = 60.0


@dataclass
class SecondRun:
    """A second and a third run. Their values are gone, but for those that are in doubt.

    Attributes:
        judgements: on them.
        beside: whether they ran at the same time, in two threads.
        resized: whether the second had inputs of other sizes.
        overwritten: whether results of the first run changed meanwhile.
    """

    judgements: list[Judgement]
    beside: bool
    resized: bool
    overwritten: bool

    @property
    def varies(self) -> bool:
        """Whether eager gave something else when it ran again."""
        return any(judgement.varies for judgement in self.judgements)

    def settle(self) -> list[Comparison]:
        """Decide; frees what was in doubt."""
        return [c for judgement in self.judgements for c in judgement.settle()]


def run_again(
    first: Baseline,
    compiled: Run,
    resized: Sequence[Sequence[Tensor]],
    outputs: Any,
    gradients: Sequence[Tensor | None] = (),
    beside: bool = True,
) -> SecondRun | None:
    """Run with other values, and once more as the first time; None if eager does not take other values.

    Args:
        resized: inputs of other sizes, one set of which will do.
        outputs, gradients: of the first compiled run. Nothing of them may change.
        beside: run the third time in another thread, at the same time as the second time.
    """
    plan = replace(first.plan, seed=SEED if first.want.draws else None)
    before = _checksums((outputs, gradients))
    attempts = ((inputs, replace(plan, change=change)) for inputs in (*resized, first.tensors) for change in CHANGES)
    runs = (_in_eager(first, *attempt) for attempt in attempts)
    if (second := next((run for run in runs if run is not None), None)) is None:
        return None

    third = _Third(compiled, first)
    if beside and not first.want.draws:  # threads share the generators: which of two draws first is anybody's guess
        third.begin()
    plan_of_compiled = replace(second.plan.compiled(second.want), before_backward=third.finish)
    try:
        got: Outcome | Exception = run_on_copies(compiled, second.tensors, plan_of_compiled)
    except Exception as e:
        got = e
    finally:
        third.wait()
    overwritten = before != _checksums((outputs, gradients))
    if isinstance(got, Exception):
        problem = f"raises {type(got).__name__}: {got}"
        judgements = [Judgement([Comparison("second run, with other values", problem=problem)])]
    else:
        judgements = [judge(second, got, exactness=False)]
        for c in judgements[0].comparisons:
            c.what += ", in a second run with other values"
        if not first.want.draws and third.outputs is not None:
            judgements.append(doubted(first, *_unlike_first(outputs, third.outputs)))
    return SecondRun(judgements, third.began, second.tensors is not first.tensors, overwritten)


def _in_eager(first: Baseline, inputs: Sequence[Tensor], plan: Plan) -> Baseline | None:
    """What eager gives for other values; None if it does not take them."""
    try:
        found = run_on_copies(first.eager, inputs, plan)
        is_taken = plan.change is near_values or _as_finite(found, first.want)
    except Exception:
        return None
    return replace(first, tensors=inputs, plan=plan, want=found) if is_taken else None


def _as_finite(second: Outcome, first: Outcome) -> bool:
    """Whether only such values are NaN or infinite as were before: what gives others is no value for this function."""
    values = zip(*(pytree.tree_leaves((o.outputs, o.gradients)) for o in (second, first)), strict=True)
    pairs = [(a, b) for a, b in values if isinstance(a, Tensor) and not a.is_meta]
    return all(are_finite(a) or not are_finite(b) for a, b in pairs)


def _unlike_first(outputs: Any, third: Any) -> tuple[list[Comparison], dict[str, Tensor]]:
    """What a call gives for the values of the first run, where that is something quite else, and those values.

    Sums on a GPU are in any order.
    """
    found: list[Comparison] = []
    values: dict[str, Tensor] = {}
    pairs = zip(pytree.tree_leaves(outputs), pytree.tree_leaves(third), strict=True)
    for i, (a, b) in enumerate(pairs):
        c = compare_values(f"output {i}", b, a)
        c.what = f"{c.what}, in a third run as the first"
        if c.problem and (not c.error or c.error > QUITE_ELSE * c.allowed):
            found.append(c)
        if isinstance(b, Tensor):
            values[c.what] = b.detach()
    return found, values


def _checksums(results: Any) -> list[int | None]:
    return [checksum(t) for t in pytree.tree_leaves(results) if isinstance(t, Tensor)]


class _Third:
    """A run as the first, forward only; it may begin in another thread.

    Attributes:
        outputs: what came of it; None if it raised there.
        began: whether it ran in another thread.
    """

    def __init__(self, compiled: Run, first: Baseline) -> None:
        self._compiled = compiled
        self._first = first
        self._thread: threading.Thread | None = None
        self.outputs: Any = None
        self.began = False

    def _run(self) -> None:
        with self._compiled(copy_inputs(self._first.tensors)[1]) as outputs:
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
            with random_state(), unmoved(self._first.plan.generators):
                self._run()

    def wait(self) -> None:
        """Wait for the thread, if there is one."""
        if self._thread is not None:
            self._thread.join(PATIENCE)
            self.began = self.began or self._thread.is_alive()
