"""The choice between saving and recomputing, in numbers alone.

Each value of the forward pass may be saved, or recomputed in the backward pass from values that are themselves saved or
recomputed. Costs add up. All are integers, so that sums of many are exact.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

Cost = int | None  # None: impossible


@dataclass(frozen=True)
class Problem:
    """Values are numbered from 0, each after those that it is computed from.

    Attributes:
        inputs: for each value, those that it is computed from.
        save: what it costs to save it.
        recompute: what it costs to recompute it, without its inputs.
        needed: the values that the backward pass reads.
    """

    inputs: Sequence[Sequence[int]]
    save: Sequence[Cost]
    recompute: Sequence[Cost]
    needed: Collection[int]

    def resolve(self, chosen: Collection[int]) -> tuple[list[int], list[int]]:
        """(saved, recomputed): those of the chosen values that are read, and what is recomputed from them.

        What costs nothing to save is saved wherever it is read.

        Raises:
            Impossible: a value that is read is not chosen, and cannot be recomputed.
        """
        saved, recomputed = set[int](), set[int]()
        stuck, queue = set[int](), list(self.needed)
        while queue:
            value = queue.pop()
            if value in saved or value in recomputed:
                continue
            if value in chosen or self.save[value] == 0:
                saved.add(value)
            elif self.recompute[value] is None:
                stuck.add(value)
                saved.add(value)
            else:
                recomputed.add(value)
                queue += self.inputs[value]
        if stuck:
            raise Impossible(sorted(stuck))
        return sorted(saved), sorted(recomputed)

    def cost(self, chosen: Collection[int]) -> int:
        """What saving the chosen values costs in total, with all that is recomputed.

        Raises:
            Impossible: as `resolve`, or a chosen value cannot be saved.
        """
        saved, recomputed = self.resolve(chosen)
        return total(self.save[v] for v in saved) + total(self.recompute[v] for v in recomputed)


class Impossible(Exception):
    """There is no choice.

    Attributes:
        values: those that can be neither saved nor recomputed.
    """

    def __init__(self, values: Sequence[int]) -> None:
        super().__init__(f"values {values} can be neither saved nor recomputed")
        self.values = values


def total(costs: Iterable[Cost]) -> int:
    """The sum of possible costs."""
    found = list(costs)
    if None in found:
        raise Impossible([])
    return sum(c for c in found if c is not None)
