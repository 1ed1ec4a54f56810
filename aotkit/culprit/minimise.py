"""Make a wrong graph smaller: fewer steps, then fewer outputs."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from torch.fx import Node

from aotkit.culprit.cuts import Cut, Cuts
from aotkit.culprit.result import NotFound
from aotkit.culprit.subgraphs import Step, live_values, nodes_of
from aotkit.culprit.trials import Trial, Trials

Item = TypeVar("Item")
Wrong = TypeVar("Wrong")


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
            steps, wrong = _neighbourhood(trials.piece, steps, steps[-1], lambda n: n.all_input_nodes, wrong)
            steps, wrong = left_out(trials.piece, steps, wrong)
        return steps, _with_one_output(trials, steps, wrong)
    except NotFound:  # no attempts are left
        return steps, wrong


def smallest_cut(cuts: Cuts, steps: Sequence[Step], node: Node | None) -> Cut | None:
    """The smallest joint graph found that is partitioned wrongly; None if the one of these steps is not.

    Args:
        node: where to look for it, if that is known.
    """
    if (wrong := cuts.piece(steps)) is None:
        return None
    if node is not None:
        steps, wrong = _neighbourhood(cuts.piece, steps, [node], lambda n: [*n.all_input_nodes, *n.users], wrong)
    steps, wrong = left_out(cuts.piece, steps, wrong)
    return left_out(lambda fewer: cuts.piece(steps, fewer), cuts.outputs(steps), wrong)[1]


def _neighbourhood(
    attempt: Callable[[Sequence[Step]], Wrong | None],
    steps: Sequence[Step],
    centre: Sequence[Node],
    neighbours: Callable[[Node], Iterable[Node]],
    wrong: Wrong,
) -> tuple[Sequence[Step], Wrong]:
    """Some nodes and what is near them, over ever more steps."""
    distance, before = 1, sum(not set(centre).isdisjoint(step) for step in steps)
    while True:
        near = set(centre)
        for _ in range(distance):
            near |= {n for node in near for n in neighbours(node)}
        kept = [step for step in steps if not near.isdisjoint(step)]
        if len(kept) == before:
            return steps, wrong
        if (found := attempt(kept)) is not None:
            return kept, found
        distance, before = 2 * distance, len(kept)


def left_out(
    attempt: Callable[[Sequence[Item]], Wrong | None], items: Sequence[Item], wrong: Wrong
) -> tuple[Sequence[Item], Wrong]:
    """Leave out what can be left out, in halves, quarters, ... and at last one by one."""
    size = len(items) // 2
    while size:
        end = len(items)
        while end > 0 and len(items) > 1:
            fewer = [*items[: max(end - size, 0)], *items[end:]]
            if fewer and (found := attempt(fewer)) is not None:
                items, wrong = fewer, found
            end -= size
        size //= 2
    return items, wrong


def _with_one_output(trials: Trials, steps: Sequence[Step], wrong: Trial) -> Trial:
    outputs: list[Node] = live_values(trials.part.gm, nodes_of(steps))
    named = {f"output {i}": node for i, node in enumerate(outputs)}
    first = next((named[c.what] for c in wrong.report.comparisons if c.problem and c.what in named), None)
    if len(outputs) == 1 or first is None:
        return wrong
    return trials.piece(steps, [first]) or wrong
