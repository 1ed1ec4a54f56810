"""The segments that a path may have which is faster than one that is known, and what they add on the way to the end.

A segment is dropped if all ways through it take too long, by Lagrangian bounds, or hold too much at some step, however
little what comes before and after holds there (Dumitrescu and Boland, 2003). What is left bounds more tightly, so this
is repeated until nothing is dropped any more.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from aotkit.partitioners.rematerialization.paths import Paths, Ways

HALF = 0.5  # a unit of time: times are whole, what they are compared with is rounded


@dataclass(frozen=True)
class Narrowed:
    """What is left of the ways through the places.

    Attributes:
        after: as of `Paths`.
        rest: [places, prices], the least that ways from a place to the last one cost.
        least: [places, steps], the least bytes that they add.
        most: [places, steps], the most bytes.
    """

    after: Ways
    rest: Tensor
    least: Tensor
    most: Tensor


def narrowed(paths: Paths, limit: float, start: Tensor, costs: Tensor, time: float) -> Narrowed:
    """What paths may take that keep within a limit and take less time than some.

    Args:
        start: [prices], what the first place costs.
        costs: [segments, prices].
    """
    after = paths.after
    while True:
        spent, held = _from_the_start(paths, after, costs, start)
        rest, least, most = _from_the_end(paths, after, costs)
        kept: Ways = [[] for _ in after]
        for place, ways in enumerate(after):
            for stop, numbers in ways:
                cost = (spent[place] + costs[numbers] + rest[stop]).amax(1)
                peak = (held[place] + paths.alive[numbers] + least[stop]).amax(1)
                if len(left := numbers[(cost < time - HALF) & (peak <= limit)]):
                    kept[place].append((stop, left))
        if _count(kept) == _count(after):
            return Narrowed(kept, rest, least, most)
        after = kept


def _from_the_start(paths: Paths, after: Ways, costs: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """[places, prices] and [places, steps]: the least that ways from the first place cost and hold."""
    cost, held = _unreached(paths, start), _unreached(paths, paths.fixed)
    cost[0], held[0] = start, paths.fixed
    for place, ways in enumerate(after):
        for stop, numbers in ways:
            cost[stop] = torch.minimum(cost[stop], cost[place] + costs[numbers].amin(0))
            held[stop] = torch.minimum(held[stop], held[place] + paths.alive[numbers].amin(0))
    return cost, held


def _from_the_end(paths: Paths, after: Ways, costs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`rest`, `least` and `most` of `Narrowed`."""
    rest, least = _unreached(paths, costs[0]), _unreached(paths, paths.fixed)
    most = -least
    rest[-1] = least[-1] = most[-1] = 0
    for place in reversed(range(paths.last)):
        for stop, numbers in after[place]:
            rest[place] = torch.minimum(rest[place], costs[numbers].amin(0) + rest[stop])
            least[place] = torch.minimum(least[place], paths.alive[numbers].amin(0) + least[stop])
            most[place] = torch.maximum(most[place], paths.alive[numbers].amax(0) + most[stop])
    return rest, least, most


def _unreached(paths: Paths, row: Tensor) -> Tensor:
    return torch.full((paths.last + 1, len(row)), math.inf, dtype=torch.float64)


def _count(ways: Ways) -> int:
    return sum(len(numbers) for some in ways for _, numbers in some)
