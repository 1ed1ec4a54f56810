"""Bisection: ever larger prefixes of a graph, until one is wrong."""

from collections.abc import Sequence

from aotkit.culprit.subgraphs import Step
from aotkit.culprit.trials import Trial, Trials


def first_wrong_prefix(trials: Trials, steps: Sequence[Step]) -> tuple[int, Trial] | None:
    """The length of the shortest prefix that is compiled wrongly; None if not even the prefix of all steps is.

    A prefix returns whatever the rest of the graph reads. A wrong value that reaches an output passes through every cut
    on its way there, so from the first wrong node on all prefixes are wrong, and bisection finds it.
    """
    wrong = trials.piece(steps)
    if wrong is None:
        return None
    right, end = 0, len(steps)
    while end - right > 1:
        middle = (right + end) // 2
        if (found := trials.piece(steps[:middle])) is None:
            right = middle
        else:
            end, wrong = middle, found
    return end, wrong
