"""Improve a choice within a limit, one value at a time: save what still fits, exchange what does not."""

from collections.abc import Iterable, Sequence

from aotkit.partitioners.rematerialization.problem import Problem

ROUNDS = 4
MOST_EXCHANGED = 100  # values tried in a round, large ones first


class Draft:
    """A choice that changes. What one more or one less saved value takes is found without looking at all others.

    Attributes:
        saved: what is chosen, read or not.
        time: what saving and recomputing takes.
        kept: bytes.
        stuck: how many values are read that are neither saved nor can be recomputed: with any, there is no such choice.
    """

    def __init__(self, problem: Problem, kept: Sequence[int], saved: Iterable[int]) -> None:
        self._problem = problem
        self._bytes = kept
        self._readers = [0] * len(kept)
        self.saved = {*saved, *(v for v, cost in enumerate(problem.save) if cost == 0)}
        self.time = self.kept = self.stuck = 0
        self._read(problem.needed, 1)

    def toggle(self, value: int) -> None:
        """Save a value that is not saved, and the other way round."""
        is_read = self._readers[value] > 0
        if is_read:
            self._read(self._count(value, -1), -1)
        self.saved ^= {value}
        if is_read:
            self._read(self._count(value, 1), 1)

    def size(self, value: int) -> int:
        """The bytes that a value keeps alive if it is saved; 0 if it cannot be."""
        return self._bytes[value] if self._problem.save[value] is not None else 0

    def absent(self) -> list[int]:
        """The values that run again and could be saved, large ones first."""
        again = (v for v, readers in enumerate(self._readers) if readers and v not in self.saved)
        return sorted(filter(self.size, again), key=self.size, reverse=True)

    def _read(self, values: Iterable[int], sign: int) -> None:
        """One more, or one less, reads each of these."""
        queue = list(values)
        while queue:
            value = queue.pop()
            before = self._readers[value]
            self._readers[value] += sign
            if not before or before + sign == 0:
                queue += self._count(value, sign)

    def _count(self, value: int, sign: int) -> Sequence[int]:
        """Add what a value that is read takes, or take it off. What it reads itself is returned."""
        if value in self.saved:
            self.time += sign * (self._problem.save[value] or 0)
            self.kept += sign * self._bytes[value]
            return ()
        cost = self._problem.recompute[value]
        if cost is None:
            self.stuck += sign
            return ()
        self.time += sign * cost
        return self._problem.inputs[value]


def fill(draft: Draft, limit: int) -> None:
    """Save more, and other values, where that takes less time and keeps within the limit."""
    for _ in range(ROUNDS):
        time = draft.time
        for value in draft.absent():
            if draft.size(value) <= limit - draft.kept:
                _replace(draft, value, (), limit)
        _exchange(draft, limit)
        if draft.time == time:
            break


def indivisible(draft: Draft, limit: int) -> int | None:
    """The smallest value whose saving would take less time, if it did not exceed the limit."""
    for value in reversed(draft.absent()):
        time = draft.time
        draft.toggle(value)
        is_faster = draft.time < time and draft.kept > limit
        draft.toggle(value)
        if is_faster:
            return value
    return None


def _exchange(draft: Draft, limit: int) -> None:
    """Save values that do not fit, in place of others."""
    losses = _losses(draft)
    by_time = sorted(losses, key=lambda v: losses[v][0])
    by_rate = sorted(losses, key=lambda v: losses[v][0] / losses[v][1])
    for value in draft.absent()[:MOST_EXCHANGED]:
        if value in draft.saved:
            continue
        over = draft.kept + draft.size(value) - limit
        single = next(([v] for v in by_time if losses[v][1] > over), [])
        several = (v for v in by_rate if losses[v][1] <= over)
        for others in (single, several):
            if _replace(draft, value, (v for v in others if v in draft.saved), limit):
                break


def _losses(draft: Draft) -> dict[int, tuple[int, int]]:
    """Of each saved value, the time that it takes not to save it, and the bytes that this leaves free."""
    losses: dict[int, tuple[int, int]] = {}
    time, kept = draft.time, draft.kept
    for value in sorted(draft.saved):
        draft.toggle(value)
        if not draft.stuck and draft.kept < kept:
            losses[value] = (draft.time - time, kept - draft.kept)
        draft.toggle(value)
    return losses


def _replace(draft: Draft, value: int, others: Iterable[int], limit: int) -> bool:
    """Save a value instead of as many others as it takes, in this order; or change nothing, if that is not faster."""
    time, toggled = draft.time, [value]
    draft.toggle(value)
    for other in others:
        if draft.kept <= limit or draft.time >= time:
            break
        draft.toggle(other)
        toggled.append(other)
    if draft.time < time and draft.kept <= limit and not draft.stuck:
        return True
    for other in toggled:
        draft.toggle(other)
    return False
