"""Prices of a byte at each step that tell the most about one limit.

At any prices, no path within a limit takes less than the time of a shortest path, with what it holds beyond the limit
at these prices. The prices at which this is the most are found by steps along what the shortest path holds beyond
the limit, as long as Polyak has them (1969), and halved where they lead no further (Held, Wolfe and Crowder, 1974).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from aotkit.partitioners.rematerialization.paths import PRICES, ROUNDS, Path, Paths

STEPS = 200
PATIENCE = 8  # steps that lead no further, after which they are halved
KEPT = 8  # rows of prices


@dataclass(frozen=True)
class Ascent:
    """What was found on the way.

    Attributes:
        best: the fastest path within the limit.
        prices: [some, steps], of a byte: the last ones, and for each of the explored ones the best.
        bound: the least time of a path within the limit, by these.
    """

    best: Path
    prices: Tensor
    bound: float


def ascend(paths: Paths, limit: float) -> Ascent:
    """The prices that bound the time of paths within a limit the most.

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
        over = paths.held(path) - limit
        found = Path(tuple(path), float(paths.time[path].sum()), float(over.max()) + limit)
        if found.peak <= limit and found.time < best.time:
            best = found
        least = found.time + float(over @ prices)
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
    return Ascent(best, torch.cat([torch.stack(higher[-KEPT:]), some]), bound)
