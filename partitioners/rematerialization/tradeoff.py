"""Time against bytes: the fastest choice that saves no more than a number of bytes, with a bound on what it misses.

Bytes get a price, in time; for each price `solve` finds the best choice exactly. As the price rises, bytes fall, and
what these choices take makes the lower convex hull of all choices. The edge of that hull above the limit is found by
Dinkelbach's method: the price that makes two choices equal is tried next. On an edge many choices are equally good, as
one layer of a network may be recomputed, or two, or three: these are told apart by a split, before which values are
saved less readily than after it. What is best at any price bounds what any choice within the limit can take.

What is left of the limit is filled with single values (`filling`). Where one value is so large that neither with nor
without it the limit is met closely, the bound is tightened, and both are tried: saved, and not.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

from aotkit.partitioners.rematerialization.blocks import Known, solve
from aotkit.partitioners.rematerialization.filling import Draft, fill, indivisible
from aotkit.partitioners.rematerialization.problem import Impossible, Problem, remainder

GAP = 0.01
MOST_BRANCHES = 8
TIE = 2**60  # more than twice the bytes of any graph
Bound = Fraction | float  # a time, exactly; infinite if there is nothing that it bounds


@dataclass(frozen=True)
class Tradeoff:
    """A problem in time, and the bytes that each value keeps alive if it is saved.

    Attributes:
        anyway: the time that everything takes besides, at least.
    """

    time: Problem
    kept: Sequence[int]
    anyway: int = 0
    _known: dict[tuple[Fraction, int], "Choice"] = field(default_factory=dict, init=False, repr=False)

    def choice(self, chosen: Collection[int]) -> "Choice":
        """What saving the chosen values takes."""
        saved = frozenset(self.time.resolve(chosen)[0])
        return Choice(saved, self.time.cost(saved), sum(self.kept[v] for v in saved))

    def best(self, price: Fraction, split: int = 0, known: Known | None = None) -> "Choice":
        """The best choice at a price of a byte.

        Args:
            split: of choices that are equally good, the one that saves little before this value and much after it.
            known: as for `solve`.
        """
        if (found := self._known.get((price, split))) is not None:
            return found
        numbers, core = self._core
        second, byte = price.denominator, price.numerator  # what each costs; to look these up is slow

        def priced(value: int, save: int | None) -> int | None:
            if save is None:
                return None
            kept = core.kept[value]
            whole = save * second + kept * byte
            return whole * TIE + (kept if numbers[value] < split else -kept) if whole else 0

        save = [priced(v, cost) for v, cost in enumerate(core.time.save)]
        again = [None if cost is None else cost * (second * TIE) for cost in core.time.recompute]
        found = core.choice(solve(replace(core.time, save=save, recompute=again), known))
        self._known[price, split] = found = replace(found, saved=frozenset(numbers[v] for v in found.saved))
        return found

    @cached_property
    def _core(self) -> "tuple[list[int], Tradeoff]":
        """(numbers of values, the costs of those alone): what is left to choose whatever a byte costs."""
        numbers, time = remainder(self.time, self.kept)
        return numbers, Tradeoff(time, [self.kept[v] for v in numbers])


@dataclass(frozen=True)
class Choice:
    """Values to save.

    Attributes:
        time: what saving and recomputing takes, in units of the problem.
        kept: bytes.
        gap: by what share a better choice within the limit could at most be faster, with what everything else takes.
        indivisible: the smallest value that would be saved, too, if the limit left as many bytes free as it has.
    """

    saved: frozenset[int]
    time: int
    kept: int
    gap: float = 0.0
    indivisible: int | None = None


class OverBudget(Exception):
    """No choice keeps so few bytes; `least` are possible."""

    def __init__(self, least: int) -> None:
        super().__init__(f"at least {least} bytes")
        self.least = least


def fastest(tradeoff: Tradeoff) -> Choice:
    """The fastest choice of all, and of those the one that keeps the fewest bytes."""
    return tradeoff.best(Fraction(1, 1 + sum(tradeoff.kept)), len(tradeoff.kept))


def smallest(tradeoff: Tradeoff) -> Choice:
    """The choice that keeps the fewest bytes, and of those the fastest one."""
    times = itertools.chain(tradeoff.time.save, tradeoff.time.recompute)
    return tradeoff.best(Fraction(1 + sum(t or 0 for t in times)), len(tradeoff.kept))


def between(tradeoff: Tradeoff, above: Choice, below: Choice) -> tuple[Fraction, Choice | None]:
    """(the price at which two choices are equally good, the best choice there if it is better).

    Args:
        above: the one that keeps more bytes.
    """
    price = Fraction(below.time - above.time, above.kept - below.kept)
    middle = tradeoff.best(price)
    return price, middle if middle.time + price * middle.kept < above.time + price * above.kept else None


def fastest_within(tradeoff: Tradeoff, limit: int) -> Choice:
    """The fastest choice found that keeps at most `limit` bytes. Its gap is certified.

    Raises:
        OverBudget: there is none.
        Impossible: there is no choice at all.
    """
    number = itertools.count()
    root = _Edge(tradeoff, limit)
    best = _filled(tradeoff, root.best, limit)
    open_: list[tuple[Bound, int, _Edge]] = [(root.bound, next(number), root)]
    settled: Bound = Fraction(best.time)  # the least bound of what is not branched any further
    for _ in range(MOST_BRANCHES):
        if not open_ or _gap(tradeoff, best, min(open_[0][0], settled)) <= GAP:
            break
        bound, _, edge = heapq.heappop(open_)
        if (value := edge.indivisible) is None:
            settled = min(settled, bound)
            continue
        if (tighter := _bound_by_multiples(edge, limit, tradeoff.kept[value])) > bound:
            heapq.heappush(open_, (tighter, next(number), edge))
            continue
        for branch in _with_and_without(edge.tradeoff, value):
            try:
                found = _Edge(branch, limit)
            except (OverBudget, Impossible):
                continue
            heapq.heappush(open_, (found.bound, next(number), found))
            best = min(best, _filled(tradeoff, found.best, limit), key=lambda c: c.time)
    return replace(best, gap=_gap(tradeoff, best, min([settled, *(bound for bound, *_ in open_)])))


def _gap(tradeoff: Tradeoff, best: Choice, bound: Bound) -> float:
    return max(0.0, float(best.time - bound)) / max(tradeoff.anyway + best.time, 1)


def smallest_within(tradeoff: Tradeoff, most: int) -> Choice:
    """The choice found that keeps the fewest bytes and takes at most so long; the fastest one if all take longer."""
    above, below = fastest(tradeoff), smallest(tradeoff)
    if below.time <= most or above.time > most:
        return tradeoff.choice((below if below.time <= most else above).saved)

    def is_quick(choice: Choice) -> bool:
        return choice.time <= most

    above, below, price = _crossing(tradeoff, above, below, is_quick)
    found = _along(tradeoff, above, below, price, is_quick)
    best = min([above, *filter(is_quick, found)], key=lambda c: c.kept)
    return tradeoff.choice(best.saved)


class _Edge:
    """The edge of the hull above a limit.

    Attributes:
        best: the fastest choice within the limit that was found on it.
        bound: no choice within the limit takes less.
        indivisible: of the values that are saved at one end only, the largest that is larger than what `best` leaves
            free; None: there is none.

    Raises:
        OverBudget: no choice keeps so few bytes.
    """

    def __init__(self, tradeoff: Tradeoff, limit: int) -> None:
        above, below, price = _ends(tradeoff, limit)
        found = _along(tradeoff, above, below, price, lambda choice: choice.kept > limit)
        self.tradeoff = tradeoff
        self.best = min([below, *(c for c in found if c.kept <= limit)], key=lambda c: c.time)
        self.bound = above.time + price * (above.kept - limit)
        large = [v for v in above.saved ^ below.saved if tradeoff.kept[v] > limit - self.best.kept]
        self.indivisible = max(large, key=lambda v: tradeoff.kept[v], default=None)


def _ends(tradeoff: Tradeoff, limit: int) -> tuple[Choice, Choice, Fraction]:
    """The two choices between which the hull crosses the limit, and the price at which they are equally good."""
    above = fastest(tradeoff)
    if above.kept <= limit:
        return above, above, Fraction(0)
    below = smallest(tradeoff)
    if below.kept > limit:
        raise OverBudget(below.kept)
    return _crossing(tradeoff, above, below, lambda choice: choice.kept > limit)


def _crossing(
    tradeoff: Tradeoff, above: Choice, below: Choice, is_above: Callable[[Choice], bool]
) -> tuple[Choice, Choice, Fraction]:
    """The two neighbours on the hull of which one is above, and the price at which they are equally good."""
    while True:
        price, middle = between(tradeoff, above, below)
        if middle is None:
            return above, below, price
        above, below = (middle, below) if is_above(middle) else (above, middle)


def _along(
    tradeoff: Tradeoff, above: Choice, below: Choice, price: Fraction, is_above: Callable[[Choice], bool]
) -> Iterator[Choice]:
    """Choices on the edge between two, all equally good at the price, nearer and nearer to where it is crossed."""
    disputed = sorted(above.saved ^ below.saved)
    low, high = 0, len(disputed)
    while high - low > 1:
        split = (low + high) // 2
        found = tradeoff.best(price, disputed[split])
        low, high = (split, high) if is_above(found) else (low, split)
        yield found


def _bound_by_multiples(edge: _Edge, limit: int, size: int) -> Bound:
    """What no choice within a limit can be faster than, by how often a size fits into the limit.

    In multiples of the size, rounded down, a choice keeps at most the limit rounded down. Either it keeps one less, or
    exactly that: then what rounding leaves off its values has to fit into what it leaves off the limit. To count these
    bytes several times is no less true, and tells the most if all of them that the edge's best choice keeps weigh as
    much as one multiple, as they could be kept in its place.
    """
    kept, (count, rest) = edge.tradeoff.kept, divmod(limit, size)
    multiples = [nbytes // size for nbytes in kept]
    times = max(1, size // max(1, sum(kept[v] % size for v in edge.best.saved)))
    exactly = _bound(edge.tradeoff, [nbytes + times * (nbytes % size) for nbytes in kept], limit + times * rest)
    at_most = _bound(edge.tradeoff, multiples, count)
    return max(at_most, min(exactly, _bound(edge.tradeoff, multiples, count - 1)))


def _bound(tradeoff: Tradeoff, kept: Sequence[int], limit: int) -> Bound:
    """What no choice can be faster than that keeps within a limit, if bytes are counted otherwise; may be infinite."""
    try:
        above, _, price = _ends(replace(tradeoff, kept=kept), limit)
    except OverBudget:
        return math.inf
    return above.time + price * (above.kept - limit)


def _filled(tradeoff: Tradeoff, choice: Choice, limit: int) -> Choice:
    draft = Draft(tradeoff.time, tradeoff.kept, choice.saved)
    fill(draft, limit)
    return replace(tradeoff.choice(draft.saved), indivisible=indivisible(draft, limit))


def _with_and_without(tradeoff: Tradeoff, value: int) -> Sequence[Tradeoff]:
    """The same where a value has to be saved, and where it must not be."""
    time = tradeoff.time
    save, again = list(time.save), list(time.recompute)
    again[value], save[value] = None, None
    with_it = replace(time, recompute=again, needed=[*time.needed, value])
    return replace(tradeoff, time=with_it), replace(tradeoff, time=replace(time, save=save))
