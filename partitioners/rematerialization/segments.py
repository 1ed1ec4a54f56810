"""Pieces of the forward pass that can be recomputed one at a time, and how each may be cut.

Recomputing a value takes all that it is recomputed from: however little is saved, a chain through the whole network is
in memory at once. So the forward pass is broken at *places* at which few bytes are read across. What is read across a
place is saved; what lies between two places is then recomputed by itself, and is gone before backward comes to what
lies before. Each such segment is cut exactly, for several prices of a byte; equal layers are solved once.
"""

import heapq
import itertools
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from aotkit.partitioners.rematerialization.blocks import Known
from aotkit.partitioners.rematerialization.lifetimes import Lifetimes
from aotkit.partitioners.rematerialization.problem import Problem, free_values
from aotkit.partitioners.rematerialization.tradeoff import Choice, Tradeoff, between, fastest, smallest
from aotkit.partitioners.rematerialization.values import Values

MOST_PLACES = 64
MOST_PRICES = 8
NEARBY = 2  # places before and after
HILL = 1.5
LENGTHS = (1, 2, 3, 4, 6, 8)  # of segments, in places, besides the whole


@dataclass(frozen=True)
class Segment:
    """One way to cut what lies between two places.

    Attributes:
        start: the number of the place before it.
        stop: the number of the place after it.
        saved: the values to save.
        recomputed: what is recomputed from those, in the order of the graph.
        time: what both take, as of a `Choice`.
    """

    start: int
    stop: int
    saved: Sequence[int]
    recomputed: Sequence[int]
    time: int


def segments(values: Values, costs: Tradeoff, lifetimes: Lifetimes) -> Iterator[Segment]:
    """All segments, cut in all ways that are tried; the whole is one of them.

    Raises:
        Impossible: the whole cannot be cut.
    """
    read_until = _read_until(values, costs)
    places = _places(values, costs, lifetimes, read_until)
    corners = _hull(costs)
    blocks: dict[Fraction, Known] = {price: {} for price in _prices(corners)}
    known: dict[Hashable, list[tuple[list[int], list[int], int]]] = {}
    last = len(places) - 1
    for start in range(last):
        for stop in (start + length for length in LENGTHS if start + length <= last and length < last):
            members = [i for i in range(places[start], places[stop]) if values.in_forward[i]]
            part = _part(members, places[stop], costs, lifetimes, read_until)
            time = part.time
            key = tuple(map(tuple, (time.save, time.recompute, time.needed, part.kept, *time.inputs)))
            if key not in known:
                choices = _distinct(part.best(price, len(members), cuts) for price, cuts in blocks.items())
                known[key] = [(*time.resolve(choice.saved), choice.time) for choice in choices]
            for saved, recomputed, taken in known[key]:
                yield Segment(start, stop, [members[k] for k in saved], [members[k] for k in recomputed], taken)
    for choice in _distinct(corners):
        saved, recomputed = costs.time.resolve(choice.saved)
        yield Segment(0, last, saved, [i for i in recomputed if values.in_forward[i]], choice.time)


def _read_until(values: Values, costs: Tradeoff) -> list[int]:
    """For each value, the number of the last one in forward that is recomputed from it; 0: none is, or it is free."""
    problem = costs.time
    is_passed_on = [kept is None and node in values.free for kept, node in zip(values.kept, values.nodes, strict=True)]
    until = [0] * len(values.nodes)
    for i in reversed(range(len(until))):
        if values.in_forward[i] and problem.recompute[i] is not None:
            for j in problem.inputs[i]:
                until[j] = max(until[j], until[i] if is_passed_on[i] else i)
    free = free_values(problem)
    return [0 if i in free or is_passed_on[i] else step for i, step in enumerate(until)]


def _places(values: Values, costs: Tradeoff, lifetimes: Lifetimes, read_until: Sequence[int]) -> list[int]:
    """The first value, what follows the last one, and the values before which a segment may end.

    Between two barriers, that is where the fewest bytes are read across, if it is not much more than nearby.
    """
    across = _bytes_across(values, costs, read_until)
    lowest: dict[int, int] = {}
    barriers = 0
    for i in range(len(across)):
        barriers += values.in_forward[i] and lifetimes.barrier[i]
        if values.in_forward[i] and across[i] > 0 and across[i] <= across[lowest.get(barriers, i)]:
            lowest[barriers] = i
    found = list(lowest.values())
    heights = [across[i] for i in found]
    found = [i for k, i in enumerate(found) if math.isfinite(across[i]) and not _is_on_a_hill(heights, k)]
    while len(found) > MOST_PLACES:
        found = found[1::2]
    return sorted({0, *found, len(across)})


def _bytes_across(values: Values, costs: Tradeoff, read_until: Sequence[int]) -> list[float]:
    """For each value, the bytes that it and later ones read of those before it; infinite: some cannot be saved."""
    count = len(values.nodes)
    nbytes, unsavable = [0] * (count + 1), [0] * (count + 1)
    for i, until in enumerate(read_until):
        if values.in_forward[i] and until > i:
            is_savable = costs.time.save[i] is not None and not values.asked_for[i]
            changes, amount = (nbytes, costs.kept[i]) if is_savable else (unsavable, 1)
            changes[i + 1] += amount
            changes[until + 1] -= amount
    sums = zip(itertools.accumulate(nbytes[:count]), itertools.accumulate(unsavable[:count]), strict=True)
    return [math.inf if some_unsavable else total for total, some_unsavable in sums]


def _is_on_a_hill(heights: Sequence[float], k: int) -> bool:
    before, after = heights[max(0, k - NEARBY) : k], heights[k + 1 : k + 1 + NEARBY]
    return bool(before and after) and heights[k] >= HILL * max(min(before), min(after))


def _part(
    members: Sequence[int], end: int, costs: Tradeoff, lifetimes: Lifetimes, read_until: Sequence[int]
) -> Tradeoff:
    """The costs of some values alone, where those that are read beyond `end` have to be saved."""
    place = {i: k for k, i in enumerate(members)}
    time = costs.time
    problem = Problem(
        [[place[j] for j in time.inputs[i] if j in place] for i in members],
        [time.save[i] for i in members],
        [None if read_until[i] >= end else time.recompute[i] for i in members],
        [k for k, i in enumerate(members) if read_until[i] >= end or lifetimes.first[i] is not None],
    )
    return Tradeoff(problem, [costs.kept[i] for i in members])


def _distinct(choices: Iterable[Choice]) -> list[Choice]:
    return list({choice.saved: choice for choice in choices}.values())


def _prices(corners: Iterable[Choice]) -> list[Fraction]:
    """Of a byte: one for each corner of the hull, among them one that hardly matters and one beside which time does."""
    by_bytes = {choice.kept: choice.time for choice in corners}
    pairs = itertools.pairwise(sorted(by_bytes.items()))
    edges = [(time - more_time) / (more - kept) for (kept, time), (more, more_time) in pairs if more_time < time]
    if not edges:
        return [Fraction(0)]
    between = [math.sqrt(price * lower) for price, lower in itertools.pairwise(edges)]
    return [Fraction(price).limit_denominator(10**9) for price in (10 * edges[0], *between, edges[-1] / 10, 0)]


def _hull(costs: Tradeoff) -> list[Choice]:
    """Corners of the lower convex hull of time and bytes, those at the largest edges first."""
    above, below = fastest(costs), smallest(costs)
    found = [above, below]
    number = itertools.count()
    edges = [(0, next(number), above, below)]
    while edges and len(found) < MOST_PRICES:
        _, _, above, below = heapq.heappop(edges)
        if above.kept <= below.kept:
            continue
        _, middle = between(costs, above, below)
        if middle is not None:
            found.append(middle)
            for one, other in ((above, middle), (middle, below)):
                heapq.heappush(edges, ((one.time - other.time) * (one.kept - other.kept), next(number), one, other))
    return found
