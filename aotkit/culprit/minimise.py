"""Make a wrong graph smaller: a prefix, found by bisection; then fewer steps, then fewer outputs."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

from torch.fx import Node

from aotkit.culprit.attempts import Attempts, Wrong
from aotkit.culprit.pieces import Step
from aotkit.culprit.result import NotFound

Item = TypeVar("Item")


def first_wrong_prefix(attempts: Attempts, steps: Sequence[Step]) -> tuple[Sequence[Step], Wrong] | None:
    """The shortest prefix that is compiled wrongly; None if not even the prefix of all steps is.

    A prefix returns whatever the rest of the graph reads. A wrong value that reaches an output passes through every cut
    on its way there, so from the first wrong node on all prefixes are wrong, and bisection finds it.
    """
    wrong = attempts.piece(steps)
    if wrong is None:
        return None
    right, end = 0, len(steps)
    while end - right > 1:
        middle = (right + end) // 2
        if (found := attempts.piece(steps[:middle])) is None:
            right = middle
        else:
            end, wrong = middle, found
    return steps[:end], wrong


def smallest(attempts: Attempts, steps: Sequence[Step], wrong: Wrong) -> tuple[Sequence[Step], Wrong]:
    """The smallest wrong piece found in a wrong prefix: its last step alone, or some of what that depends on.

    The last of its steps is the culprit. It is another than the prefix's where a wrong value shows only some steps
    later, because it is among others that rounding changes, such as whether two numbers are equal.

    Args:
        wrong: the prefix itself.
    """
    with suppress(NotFound):  # no attempts are left
        if (alone := attempts.piece(steps[-1:])) is not None:
            steps, wrong = steps[-1:], alone
        else:
            steps, wrong = _neighbourhood(attempts, steps, steps[-1], lambda n: n.all_input_nodes, wrong)
            steps, wrong = left_out(attempts.piece, steps, wrong)
        outputs = attempts.outputs(steps)
        wrong_outputs = [node for i, node in enumerate(outputs) if f"output {i}" in problems_of(wrong)]
        if len(outputs) > 1 and wrong_outputs:
            wrong = attempts.piece(steps, wrong_outputs[:1]) or wrong
    return steps, wrong


def smallest_cut(attempts: Attempts, steps: Sequence[Step], node: Node | None) -> Wrong | None:
    """The smallest joint graph found that is partitioned wrongly; None if the one of these steps is not.

    Args:
        node: where to look for it, if that is known.
    """
    wrong = None
    with suppress(NotFound):
        wrong = attempts.piece(steps)
        if wrong is None:
            return None
        if node is not None:
            steps, wrong = _neighbourhood(attempts, steps, [node], lambda n: [*n.all_input_nodes, *n.users], wrong)
        steps, wrong = left_out(attempts.piece, steps, wrong)
        wrong = left_out(lambda fewer: attempts.piece(steps, fewer), attempts.outputs(steps), wrong)[1]
    return wrong


def problems_of(wrong: Wrong) -> dict[str, str]:
    """How each value that differs does."""
    return {c.what: c.problem for c in wrong.report.comparisons if c.problem}


def _neighbourhood(
    attempts: Attempts,
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
        if (found := attempts.piece(kept)) is not None:
            return kept, found
        distance, before = 2 * distance, len(kept)


def left_out(
    attempt: Callable[[Sequence[Item]], Wrong | None], items: Sequence[Item], wrong: Wrong
) -> tuple[Sequence[Item], Wrong]:
    """Leave out what can be left out, in halves, quarters, ... and at last one by one, while there are attempts."""
    size = len(items) // 2
    with suppress(NotFound):
        while size:
            end = len(items)
            while end > 0 and len(items) > 1:
                fewer = [*items[: max(end - size, 0)], *items[end:]]
                if fewer and (found := attempt(fewer)) is not None:
                    items, wrong = fewer, found
                end -= size
            size //= 2
    return items, wrong
