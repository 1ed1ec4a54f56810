"""Make a wrong graph smaller: fewer steps, then fewer outputs."""

from collections.abc import Callable, Sequence

from torch.fx import Node

from aotkit.culprit.result import NotFound
from aotkit.culprit.subgraphs import Step, live_values, nodes_of
from aotkit.culprit.trials import Trial, Trials

Attempt = Callable[[Sequence[Step]], Trial | None]


def smallest(trials: Trials, steps: Sequence[Step], wrong: Trial) -> tuple[Sequence[Step], Trial]:
    """The smallest wrong piece found in a wrong prefix: its last step alone, or some of what that depends on.

    The last of its steps is the culprit. It is another than the prefix's where a wrong value shows only some steps
    later, because it is among others that rounding changes, such as whether two numbers are equal.

    Args:
        wrong: the prefix itself.
    """
    try:
        if (alone := trials.piece(steps[-1:])) is not None:
            steps, wrong = steps[-1:], alone
        else:
            steps, wrong = _neighbourhood(trials, steps, wrong)
            steps, wrong = without_steps(trials.piece, steps, wrong)
        return steps, _with_one_output(trials, steps, wrong)
    except NotFound:  # no attempts are left
        return steps, wrong


def _neighbourhood(trials: Trials, steps: Sequence[Step], wrong: Trial) -> tuple[Sequence[Step], Trial]:
    """The last step and what it depends on, over ever more steps."""
    distance, before = 1, 1
    while True:
        near = nodes_of(steps[-1:])
        for _ in range(distance):
            near |= {n for node in near for n in node.all_input_nodes}
        kept = [step for step in steps if step[0] in near]
        if len(kept) == before:
            return steps, wrong
        if (found := trials.piece(kept)) is not None:
            return kept, found
        distance, before = 2 * distance, len(kept)


def without_steps(attempt: Attempt, steps: Sequence[Step], wrong: Trial) -> tuple[Sequence[Step], Trial]:
    """Leave out what can be left out, in halves, quarters, ... and at last one by one."""
    size = len(steps) // 2
    while size:
        end = len(steps)
        while end > 0 and len(steps) > 1:
            fewer = [*steps[: max(end - size, 0)], *steps[end:]]
            if fewer and (found := attempt(fewer)) is not None:
                steps, wrong = fewer, found
            end -= size
        size //= 2
    return steps, wrong


def _with_one_output(trials: Trials, steps: Sequence[Step], wrong: Trial) -> Trial:
    outputs: list[Node] = live_values(trials.part.gm, nodes_of(steps))
    named = {f"output {i}": node for i, node in enumerate(outputs)}
    first = next((named[c.what] for c in wrong.report.comparisons if c.problem and c.what in named), None)
    if len(outputs) == 1 or first is None:
        return wrong
    return trials.piece(steps, [first]) or wrong
