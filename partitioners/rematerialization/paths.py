"""The ways through the places of a forward pass: one segment after the other, and what they hold at each step.

Bytes get a price at each step; for given prices a shortest path is the best cut. The prices move to the steps where
there is too much (Freund and Schapire's multiplicative weights, 1999), as in a game: for each price of a byte of the
peak this comes close to the best of time and peak together. No path takes less than a shortest one at any prices, which
bounds what others can reach.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from aotkit.inspection import Span
from aotkit.partitioners.rematerialization.lifetimes import Lifetimes
from aotkit.partitioners.rematerialization.segments import Segment

PRICES = 24
ROUNDS = 20
RATE = 4.0  # of the multiplicative weights
Ways = list[list[tuple[int, Tensor]]]


@dataclass(frozen=True)
class Path:
    """Segments, one after the other.

    Attributes:
        segments: their numbers.
        time: in units of the problem.
        held: [steps], the bytes that are alive.
        peak: the most of those.
    """

    segments: tuple[int, ...]
    time: float
    held: Tensor
    peak: float


@dataclass(frozen=True)
class Explored:
    """What shortest paths tell.

    No path takes less time than least - (prices * what it holds).sum(), for each row of prices.

    Attributes:
        found: paths of which none is slower and larger than another, the smallest first.
        prices: [PRICES * ROUNDS, steps], of a byte.
        least: [PRICES * ROUNDS].
    """

    found: Sequence[Path]
    prices: Tensor
    least: Tensor


class Paths:
    """All ways to put segments one after the other.

    Attributes:
        alive: [segments, steps], bytes. Steps are those at which the peak may be.
        fixed: [steps], what is alive besides.
        time: [segments], whole numbers.
        after: for each place, the places to which segments lead from there, with their numbers.
        last: the last place.
    """

    def __init__(self, segments: Sequence[Segment], lifetimes: Lifetimes) -> None:
        self.segments = segments
        self.last = max(segment.stop for segment in segments)
        alive = _alive([lifetimes.spans(s.saved, s.recomputed) for s in segments], lifetimes.steps)
        fixed = torch.tensor(lifetimes.fixed, dtype=torch.float64)
        highest = _highest(torch.cat([fixed[None], alive]).T.contiguous())
        self.fixed, self.alive = highest[:, 0], highest[:, 1:].T.contiguous()
        self.time = torch.tensor([s.time for s in segments], dtype=torch.float64)
        self._ways: list[dict[int, list[int]]] = [{} for _ in range(self.last + 1)]
        for number, s in enumerate(segments):
            self._ways[s.start].setdefault(s.stop, []).append(number)
        self.after: Ways = [[(stop, torch.tensor(numbers)) for stop, numbers in ways.items()] for ways in self._ways]

    def path(self, segments: Sequence[int]) -> Path:
        """What segments take together."""
        chosen = list(segments)
        held = self.fixed + self.alive[chosen].sum(0)
        return Path(tuple(chosen), float(self.time[chosen].sum()), held, float(held.max()))

    def shortest(self, costs: Tensor) -> Path:
        """The path that costs least; each segment has a cost."""
        cost = costs.tolist()
        best, by = [0.0, *[math.inf] * self.last], [-1] * (self.last + 1)
        for start, ways in enumerate(self._ways):
            for stop, choices in ways.items():
                cheapest = min(choices, key=cost.__getitem__)
                if best[start] + cost[cheapest] < best[stop]:
                    best[stop], by[stop] = best[start] + cost[cheapest], cheapest
        path = [by[-1]]
        while start := self.segments[path[-1]].start:
            path.append(by[start])
        return self.path(path[::-1])

    @cached_property
    def explored(self) -> Explored:
        """By prices of a byte from one beside which time does not matter to one that hardly matters itself."""
        found, prices, least = [self.shortest(self.time)], [], []
        weights = torch.full_like(self.fixed, 1 / len(self.fixed))
        whole = float(self.time.max()) / float(self.fixed.max() + self.alive.max())
        for price in (whole * 10.0**-k for k in torch.linspace(-6, 4, PRICES).tolist()):
            for _ in range(ROUNDS):
                path = self.shortest(self.time + price * (self.alive @ weights))
                found.append(path)
                prices.append(price * weights)
                least.append(path.time + float(path.held @ prices[-1]))
                weights = weights * torch.exp(RATE * (path.held / path.held.max() - 1))
                weights = weights / weights.sum()
        return Explored(_best(found), torch.stack(prices), torch.tensor(least, dtype=torch.float64))

    @property
    def smallest(self) -> Path:
        """Of those that are known."""
        return self.explored.found[0]


def _alive(spans: Sequence[Sequence[Span]], steps: int) -> Tensor:
    """[rows, steps]: `bytes_alive` of each row of spans. Bytes are whole numbers, whose sums are exact."""
    changes = torch.zeros((len(spans), steps + 1), dtype=torch.float64)
    everything = [(row, *span) for row, some in enumerate(spans) for span in some]
    row, first, last, nbytes = torch.tensor(everything, dtype=torch.long).reshape(-1, 4).T
    changes.index_put_((row, first), nbytes.double(), accumulate=True)
    changes.index_put_((row, last + 1), -nbytes.double(), accumulate=True)
    return changes.cumsum(1)[:, :steps]


def _highest(held: Tensor) -> Tensor:
    """The rows of which none is at most as large as the one before or after, in any column."""
    kept: list[int] = []
    for step in range(len(held)):
        while kept and bool((held[kept[-1]] <= held[step]).all()):
            kept.pop()
        if not kept or bool((held[step] > held[kept[-1]]).any()):
            kept.append(step)
    return held[kept]


def _best(paths: Sequence[Path]) -> list[Path]:
    """Those of which no other is faster and smaller, the smallest first."""
    kept: list[Path] = []
    for path in sorted(paths, key=lambda p: (p.peak, p.time)):
        if not kept or path.time < kept[-1].time:
            kept.append(path)
    return kept
