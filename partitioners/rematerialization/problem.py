"""The choice between saving and recomputing, in numbers alone.

Each value of the forward pass may be saved, or recomputed in the backward pass from values that are themselves saved or
recomputed. Costs add up. All are integers, so that sums of many are exact.

`reduce` makes a problem smaller without changing what its best choice costs:

* Only values from which a needed one can be recomputed matter.
* What costs no more to save than to recompute is never recomputed, so nothing has to be there for it.
* What costs nothing to have, because it is saved or recomputed for free from such values, is no choice.
* What is needed and never recomputed has to be saved: that is no choice either, and whoever reads it finds it.
* A value that only one other reads is never saved if saving that one costs no more than saving it and recomputing that
  one: the two become one.

Where saved bytes have a price that is not known yet, each of these has to hold whatever it is.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Cost = int | None  # None: impossible
DIGITS = 64


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
        saved, recomputed, queue = set[int](), set[int](), list(self.needed)
        while queue:
            value = queue.pop()
            if value in chosen or self.save[value] == 0:
                saved.add(value)
            elif value not in recomputed:
                recomputed.add(value)
                queue += () if self.recompute[value] is None else self.inputs[value]
        if stuck := sorted(v for v in recomputed if self.recompute[v] is None):
            raise Impossible(stuck)
        return sorted(saved), sorted(recomputed)

    def cost(self, chosen: Collection[int]) -> int:
        """What saving the chosen values costs in total, with all that is recomputed.

        Raises:
            Impossible: as `resolve`, or a chosen value cannot be saved.
        """
        saved, recomputed = self.resolve(chosen)
        costs = [*(self.save[v] for v in saved), *(self.recompute[v] for v in recomputed)]
        if None in costs:
            raise Impossible([])
        return sum(cost or 0 for cost in costs)


class Impossible(Exception):
    """There is no choice: `values` can be neither saved nor recomputed."""

    def __init__(self, values: Sequence[int]) -> None:
        super().__init__(f"values {values} can be neither saved nor recomputed")
        self.values = values


def computed(
    inputs: Callable[[int], Iterable[int]], start: Iterable[int], there: Collection[int] = ()
) -> dict[int, None]:
    """What is computed to have some values, themselves included, from those that are there."""
    found: dict[int, None] = {}
    queue = list(start)
    while queue:
        value = queue.pop()
        if value not in there and value not in found:
            found[value] = None
            queue += inputs(value)
    return found


@dataclass
class Reduced:
    """What is left to choose.

    Attributes:
        inputs: from each value to those that recomputing it needs; of a value that is not recomputed, none.
        save: what it costs; infinite is impossible.
        kept: the bytes that it keeps alive if it is saved, if these cost besides.
        recompute: what that costs, together with the values merged into it; infinite is impossible.
        needed: the values that have to be saved or recomputed.
        settled: the values that are saved in any case.
        infinity: more than any choice costs.
    """

    inputs: dict[int, set[int]]
    save: dict[int, int]
    kept: Sequence[int]
    recompute: dict[int, int]
    needed: set[int]
    infinity: int
    settled: set[int] = field(default_factory=set)


def reduce(problem: Problem, kept: Sequence[int] | None = None) -> Reduced:
    """All reductions, each where it applies.

    Args:
        kept: for each value, the bytes that it keeps alive if it is saved, 0 if saving it costs nothing: these cost
            besides, it is not known how much. None: no bytes do.

    Raises:
        Impossible: there is no choice at all.
    """
    everything = sum(c for costs in (problem.save, problem.recompute) for c in costs if c is not None)
    infinity = 1 << (DIGITS * (1 + everything.bit_length() // DIGITS))  # the same for problems of about the same size
    free, impossible = free_values(problem), _impossible_values(problem)
    kept = [0] * len(problem.save) if kept is None else kept
    reduced = Reduced({}, {}, kept, {}, set(), infinity)
    users: defaultdict[int, set[int]] = defaultdict(set)
    queue = [v for v in problem.needed if v not in free]
    reduced.needed = set(queue)
    if stuck := impossible & reduced.needed:
        raise Impossible(sorted(stuck))
    while queue:
        value = queue.pop()
        if value in reduced.inputs:
            continue
        save, again = (infinity if c is None else c for c in (problem.save[value], problem.recompute[value]))
        if (again >= save and not kept[value]) or not impossible.isdisjoint(problem.inputs[value]):
            again = infinity
        reduced.save[value], reduced.recompute[value] = save, again
        reduced.inputs[value] = set() if again == infinity else {i for i in problem.inputs[value] if i not in free}
        queue += reduced.inputs[value]
        for i in reduced.inputs[value]:
            users[i].add(value)
    for value in [v for v in reduced.needed if reduced.recompute[v] == infinity]:
        _settle(reduced, users, value)
    _merge(reduced, users)
    read = computed(reduced.inputs.__getitem__, reduced.needed)
    reduced.inputs = {value: reduced.inputs[value] for value in sorted(read)}
    return reduced


def remainder(problem: Problem, kept: Sequence[int]) -> tuple[list[int], Problem]:
    """(numbers of values, the problem of those alone): what is left to choose, and what is settled. As `reduce`."""
    reduced = reduce(problem, kept)
    numbers = sorted(reduced.inputs.keys() | reduced.settled)
    place = {value: k for k, value in enumerate(numbers)}
    left = Problem(
        inputs=[[place[i] for i in sorted(reduced.inputs.get(v, ()))] for v in numbers],
        save=[None if (save := reduced.save[v]) == reduced.infinity else save for v in numbers],
        recompute=[None if (again := reduced.recompute[v]) == reduced.infinity else again for v in numbers],
        needed=[place[v] for v in sorted(reduced.needed | reduced.settled)],
    )
    return numbers, left


def free_values(problem: Problem) -> set[int]:
    """Those that cost nothing to have."""
    free = set[int]()
    for value, (inputs, save, again) in enumerate(zip(problem.inputs, problem.save, problem.recompute, strict=True)):
        if save == 0 or (again == 0 and free.issuperset(inputs)):
            free.add(value)
    return free


def _impossible_values(problem: Problem) -> set[int]:
    """Those that can be neither saved nor recomputed."""
    impossible = set[int]()
    for value, (inputs, save, again) in enumerate(zip(problem.inputs, problem.save, problem.recompute, strict=True)):
        if save is None and (again is None or not impossible.isdisjoint(inputs)):
            impossible.add(value)
    return impossible


def _settle(reduced: Reduced, users: Mapping[int, set[int]], value: int) -> None:
    """Save a value that is needed and cannot be had otherwise."""
    reduced.settled.add(value)
    reduced.needed.discard(value)
    for user in users[value]:
        reduced.inputs[user].discard(value)
    del reduced.inputs[value]


def _merge(reduced: Reduced, users: Mapping[int, set[int]]) -> None:
    """Merge values into their only reader."""
    inputs, save, kept = reduced.inputs, reduced.save, reduced.kept
    recompute, infinity = reduced.recompute, reduced.infinity
    queue = list(inputs)
    while queue:
        value = queue.pop()
        if value not in inputs or value in reduced.needed or recompute[value] == infinity:
            continue
        readers = users[value] & inputs.keys()
        if len(readers) != 1:
            continue
        (reader,) = readers
        takes_more = save[reader] > save[value] + recompute[reader] or kept[reader] > kept[value]
        if takes_more and save[value] < infinity:
            continue
        recompute[reader] += recompute[value]
        inputs[reader] |= inputs.pop(value)
        inputs[reader].discard(value)
        for i in inputs[reader]:
            users[i].discard(value)
            users[i].add(reader)
        queue += [reader, *inputs[reader]]
        if recompute[reader] >= save[reader] and not kept[reader]:
            recompute[reader] = infinity
            for i in inputs[reader]:
                users[i].discard(reader)
            inputs[reader] = set()
            if reader in reduced.needed:
                _settle(reduced, users, reader)
