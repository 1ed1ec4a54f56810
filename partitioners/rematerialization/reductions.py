"""Make a problem smaller without changing what its best choice costs.

* Only values from which a needed one can be recomputed matter.
* What costs no more to save than to recompute is never recomputed, so nothing has to be there for it.
* What costs nothing to have, because it is saved or recomputed for free from such values, is no choice.
* What is needed and never recomputed has to be saved: that is no choice either, and whoever reads it finds it.
* A value that only one other reads is never saved if saving that one costs no more than saving it and recomputing that
  one: the two become one.
"""

from dataclasses import dataclass, field

from aotkit.partitioners.rematerialization.problem import Impossible, Problem

DIGITS = 64


@dataclass
class Reduced:
    """What is left to choose.

    Attributes:
        inputs: from each value to those that recomputing it needs; of a value that is not recomputed, none.
        save: what it costs; infinite is impossible.
        recompute: the same, together with the values merged into it.
        needed: the values that have to be saved or recomputed.
        settled: the values that are saved in any case.
        infinity: more than any choice costs.
    """

    inputs: dict[int, set[int]]
    save: dict[int, int]
    recompute: dict[int, int]
    needed: set[int]
    infinity: int
    settled: set[int] = field(default_factory=set)


def reduce(problem: Problem) -> Reduced:
    """All reductions, each where it applies.

    Raises:
        Impossible: there is no choice at all.
    """
    everything = sum(c for costs in (problem.save, problem.recompute) for c in costs if c is not None)
    infinity = 1 << (DIGITS * (1 + everything.bit_length() // DIGITS))  # the same for problems of about the same size
    free, impossible = free_values(problem), _impossible_values(problem)
    reduced = Reduced({}, {}, {}, set(), infinity)
    queue = [v for v in problem.needed if v not in free]
    reduced.needed = set(queue)
    if stuck := impossible & reduced.needed:
        raise Impossible(sorted(stuck))
    while queue:
        value = queue.pop()
        if value in reduced.inputs:
            continue
        save, again = (infinity if c is None else c for c in (problem.save[value], problem.recompute[value]))
        if again >= save or not impossible.isdisjoint(problem.inputs[value]):
            again = infinity
        reduced.save[value], reduced.recompute[value] = save, again
        reduced.inputs[value] = set() if again == infinity else {i for i in problem.inputs[value] if i not in free}
        queue += reduced.inputs[value]
    users = _users(reduced.inputs)
    for value in [v for v in reduced.needed if reduced.recompute[v] == infinity]:
        _settle(reduced, users, value)
    _merge(reduced, users)
    _drop_unread(reduced)
    return reduced


def free_values(problem: Problem) -> set[int]:
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


def _users(inputs: dict[int, set[int]]) -> dict[int, set[int]]:
    users: dict[int, set[int]] = {value: set() for value in inputs}
    for value, read in inputs.items():
        for i in read:
            users[i].add(value)
    return users


def _settle(reduced: Reduced, users: dict[int, set[int]], value: int) -> None:
    """Save a value that is needed and cannot be had otherwise."""
    reduced.settled.add(value)
    reduced.needed.discard(value)
    for user in users[value]:
        reduced.inputs[user].discard(value)
    del reduced.inputs[value]


def _merge(reduced: Reduced, users: dict[int, set[int]]) -> None:
    """Merge values into their only reader."""
    inputs, save, recompute, infinity = reduced.inputs, reduced.save, reduced.recompute, reduced.infinity
    queue = list(inputs)
    while queue:
        value = queue.pop()
        if value not in inputs or value in reduced.needed or recompute[value] == infinity:
            continue
        readers = users[value] & inputs.keys()
        if len(readers) != 1:
            continue
        (reader,) = readers
        if save[value] < infinity and save[reader] > save[value] + recompute[reader]:
            continue
        recompute[reader] += recompute[value]
        inputs[reader] |= inputs.pop(value)
        inputs[reader].discard(value)
        for i in inputs[reader]:
            users[i].discard(value)
            users[i].add(reader)
        queue += [reader, *inputs[reader]]
        if recompute[reader] >= save[reader]:
            recompute[reader] = infinity
            for i in inputs[reader]:
                users[i].discard(reader)
            inputs[reader] = set()
            if reader in reduced.needed:
                _settle(reduced, users, reader)


def _drop_unread(reduced: Reduced) -> None:
    seen, queue = set[int](), list(reduced.needed)
    while queue:
        value = queue.pop()
        if value not in seen:
            seen.add(value)
            queue += reduced.inputs[value]
    reduced.inputs = {value: reduced.inputs[value] for value in sorted(seen)}
