"""What no path within a limit can be faster than, and which segments a path may have that is faster than another.

At any prices of a byte at each step, no path within a limit takes less than the time of a shortest path, with what it
holds beyond the limit at these prices. The prices at which this is the most are found by steps along what the shortest
path holds beyond the limit, as long as Polyak has them (1969), and halved where they lead no further (Held, Wolfe and
Crowder, 1974).

A segment is dropped if all ways through it take too long, by these bounds, or hold too much at some step, however
little what comes before and after holds there (Dumitrescu and Boland, 2003). What is left bounds more tightly, so this
is repeated until nothing is dropped any more.
"""

import math

import torch
from torch import Tensor

from aotkit.partitioners.rematerialization.paths import PRICES, ROUNDS, Path, Paths, Ways

STEPS = 200
PATIENCE = 8  # steps that lead no further, after which they are halved
KEPT = 8  # rows of prices
HALF = 0.5  # a unit of time: times are whole, what they are compared with is rounded


def ascend(paths: Paths, limit: float) -> tuple[Path, Tensor, float]:
    """(the fastest path found within a limit, prices that bound the time of such paths, the most they say).

    Prices are [some, steps], of a byte: the last ones, and for each of the explored ones the best.

    Args:
        limit: not below the peak of the smallest path.
    """
    explored = paths.explored
    best = min((path for path in explored.found if path.peak <= limit), key=lambda path: path.time)
    bounds = explored.least - limit * explored.prices.sum(1)
    bound, prices = float(bounds.max()), explored.prices[bounds.argmax()]
    higher: list[Tensor] = [prices]
    share, waited = 1.0, 0
    for _ in range(STEPS):
        path = paths.shortest(paths.time + paths.alive @ prices)
        if path.peak <= limit and path.time < best.time:
            best = path
        over = path.held - limit
        least = path.time + float(over @ prices)
        waited += 1
        if least > bound:
            bound, waited = least, 0
            higher.append(prices)
        elif waited == PATIENCE:
            prices, share, waited = higher[-1], share / 2, 0
            continue
        over = torch.where((prices > 0) | (over > 0), over, 0)
        length = float(over @ over)
        if best.time <= bound or not length:
            break
        prices = (prices + share * (best.time - least) / length * over).clamp(min=0)
    some = explored.prices.view(PRICES, ROUNDS, -1)[range(PRICES), bounds.view(PRICES, ROUNDS).argmax(1)]
    return best, torch.cat([torch.stack(higher[-KEPT:]), some]), bound


class Narrowed:
    """What is left of the ways through the places for paths that keep within a limit and take less time than some.

    Args:
        start: [prices], what the first place costs.
        costs: [segments, prices].

    Attributes:
        after: as of `Paths`.
        rest: [places, prices], the least that ways from a place to the last one cost.
        least: [places, steps], the least bytes that they add.
        most: [places, steps], the most bytes.
    """

    def __init__(self, paths: Paths, limit: float, start: Tensor, costs: Tensor, time: float) -> None:
        self.after = paths.after
        is_smaller = True
        while is_smaller:
            before, self.after, is_smaller = self.after, [[] for _ in self.after], False
            spent, held = _from_the_start(paths, before, costs, start)
            self.rest, self.least, self.most = _from_the_end(paths, before, costs)
            for place, ways in enumerate(before):
                for stop, numbers in ways:
                    cost = (spent[place] + costs[numbers] + self.rest[stop]).amax(1)
                    peak = (held[place] + paths.alive[numbers] + self.least[stop]).amax(1)
                    if len(left := numbers[(cost < time - HALF) & (peak <= limit)]):
                        self.after[place].append((stop, left))
                    is_smaller |= len(left) < len(numbers)


def _from_the_start(paths: Paths, after: Ways, costs: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """[places, prices] and [places, steps]: the least that ways from the first place cost and hold."""
    cost, held = _unreached(after, start), _unreached(after, paths.fixed)
    cost[0], held[0] = start, paths.fixed
    for place, ways in enumerate(after):
        for stop, numbers in ways:
            cost[stop] = torch.minimum(cost[stop], cost[place] + costs[numbers].amin(0))
            held[stop] = torch.minimum(held[stop], held[place] + paths.alive[numbers].amin(0))
    return cost, held


def _from_the_end(paths: Paths, after: Ways, costs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`rest`, `least` and `most` of `Narrowed`."""
    rest, least = _unreached(after, costs[0]), _unreached(after, paths.fixed)
    most = -least
    rest[-1] = least[-1] = most[-1] = 0
    for place in reversed(range(paths.last)):
        for stop, numbers in after[place]:
            rest[place] = torch.minimum(rest[place], costs[numbers].amin(0) + rest[stop])
            least[place] = torch.minimum(least[place], paths.alive[numbers].amin(0) + least[stop])
            most[place] = torch.maximum(most[place], paths.alive[numbers].amax(0) + most[stop])
    return rest, least, most


def _unreached(places: Ways, row: Tensor) -> Tensor:
    return torch.full((len(places), len(row)), math.inf, dtype=torch.float64)
