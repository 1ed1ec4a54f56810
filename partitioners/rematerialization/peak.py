"""Time against the peak of memory: the fastest cut with which forward and backward never hold more than a limit.

What each segment holds over time adds up, so a cut is a path through the places, and its peak is the most that its
segments hold together at any step. The fastest path within the limit is a shortest path with one resource for each
step. A label is a way to a place. It is extended by every segment from there, and dropped if another one is as fast and
holds no more at any step that matters; if no way from there on keeps within the limit; or if a Lagrangian bound says
that it will be no faster than a path that is known (Dumitrescu and Boland, 2003). So the result is exact, and the path
of a larger limit takes no more time, unless more labels are left at a place than its width. Then those of the lowest
bounds go on, and the others bound what is missed.

What a segment saves for the next one, which does not read it, is not saved in the end: the choice may take less than
its path, and hold less, which the search does not know. So the choice of a larger limit may take a little more time,
where there are skip connections: 0.04 % in a U-Net.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from aotkit.inspection import bytes_alive
from aotkit.partitioners.rematerialization.bounds import HALF, Narrowed, ascend
from aotkit.partitioners.rematerialization.lifetimes import Lifetimes
from aotkit.partitioners.rematerialization.paths import Path, Paths
from aotkit.partitioners.rematerialization.segments import segments
from aotkit.partitioners.rematerialization.tradeoff import Choice, OverBudget, Tradeoff
from aotkit.partitioners.rematerialization.values import Values
from aotkit.torch_private.fake_tensors import outside_tracing

WIDTHS = (32, 128, 256)
COMPARED = 12  # labels at a place, as a multiple of its width: of the lowest bounds
BLOCK = 64  # of them at once


def paths_of(values: Values, costs: Tradeoff, lifetimes: Lifetimes) -> Paths:
    """All ways to cut a joint graph that are tried.

    Raises:
        Impossible: there is none.
    """
    with _small_tensors():
        return Paths(list(segments(values, costs, lifetimes)), lifetimes)


def fastest_below(paths: Paths, costs: Tradeoff, lifetimes: Lifetimes, limit: int) -> tuple[Choice, int]:
    """(the fastest choice found whose peak is within a limit, its peak).

    Its gap is among all that can be put together of the same segments.

    Raises:
        OverBudget: none was found.
    """

    def cut(path: Path) -> tuple[Choice, int]:
        choice = costs.choice({value for number in path.segments for value in paths.segments[number].saved})
        return choice, peak_of(choice, costs, lifetimes)

    with _small_tensors():
        target = limit
        while target >= paths.smallest.peak:
            path, bound = fastest_path(paths, target)
            choice, peak = cut(path)
            if peak <= limit:
                return replace(choice, gap=(path.time - bound) / max(costs.anyway + choice.time, 1)), peak
            target -= max(peak - limit, limit // 100)  # what is recomputed in one segment may be kept for another
        choice, peak = cut(paths.smallest)
        if peak > limit:
            raise OverBudget(peak)
        return choice, peak


@contextmanager
def _small_tensors() -> Iterator[None]:
    """Real tensors, on one thread: to share such small pieces of work among all cores takes longer than to do them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with outside_tracing():
            yield
    finally:
        torch.set_num_threads(threads)


def peak_of(choice: Choice, costs: Tradeoff, lifetimes: Lifetimes) -> int:
    """The most bytes that are alive at once, inputs and parameters included."""
    spans = lifetimes.spans(*costs.time.resolve(choice.saved))
    alive = bytes_alive(spans, lifetimes.steps)
    return max(more + fixed for more, fixed in zip(alive, lifetimes.fixed, strict=True))


def fastest_path(paths: Paths, limit: float) -> tuple[Path, float]:
    """(the fastest path found whose peak is within a limit, what no path within it can be faster than).

    Args:
        limit: not below the peak of the smallest path.
    """
    best, prices, bound = ascend(paths, limit)
    for width in WIDTHS:
        if bound > best.time - HALF:
            return best, best.time
        better, least = _Search(paths, limit, prices, best.time).path(width)
        best, bound = better or best, max(bound, least)
    return best, bound


class _Labels(NamedTuple):
    """Ways to one place.

    Attributes:
        time: [labels].
        held: [labels, steps].
        cost: [labels, prices], time and what is held beyond the limit, at prices.
        came: [labels, 2], the last segment, and the label that it extends.
    """

    time: Tensor
    held: Tensor
    cost: Tensor
    came: Tensor

    def only(self, which: Tensor) -> "_Labels":
        return _Labels(*(column[which] for column in self))


class _Search:
    """For a path within a limit that takes less time than some.

    Attributes:
        costs: [segments, prices], time and bytes at prices.
        left: the segments that it may have.
    """

    def __init__(self, paths: Paths, limit: float, prices: Tensor, time: float) -> None:
        self.paths, self.limit, self.time = paths, limit, time
        self.start = (paths.fixed - limit) @ prices.T
        self.costs = paths.time[:, None] + paths.alive @ prices.T
        self.left = Narrowed(paths, limit, self.start, self.costs, time)

    def path(self, width: int) -> tuple[Path | None, float]:
        """(the fastest path, if one is found, what no path can be faster than).

        Args:
            width: of labels at a place, about.
        """
        paths = self.paths
        came = [torch.zeros((1, 2), dtype=torch.long)] * paths.last
        waiting: list[list[_Labels]] = [[] for _ in range(paths.last + 1)]
        waiting[0].append(_Labels(torch.zeros(1, dtype=torch.float64), paths.fixed[None], self.start[None], came[0]))
        dropped = math.inf
        for place in range(paths.last):
            if not waiting[place]:
                continue
            labels, bound = self._best(place, _joined(waiting[place]), width)
            waiting[place].clear()
            came[place], dropped = labels.came, min(dropped, bound)
            for stop, numbers in self.left.after[place]:
                extended = self._extended(labels, stop, numbers)
                if len(extended.time):
                    waiting[stop].append(extended)
        if not waiting[-1]:
            return None, min(self.time, dropped)
        ends = _joined(waiting[-1])
        found = paths.path(self._way(came, ends.came[ends.time.argmin()]))
        return found, min(found.time, dropped)

    def _best(self, place: int, labels: _Labels, width: int) -> tuple[_Labels, float]:
        """(the labels of the lowest bounds that no others dominate, the lowest bound of what is left).

        One dominates another if it is as fast and holds no more, where the limit may be exceeded later.
        """
        bounds, order = (labels.cost + self.left.rest[place]).amax(1).sort(stable=True)
        labels = labels.only(order[: COMPARED * width])
        harmless = self.limit - self.left.most[place]
        matters = (labels.held > harmless).any(0)
        compared = torch.cat([labels.time[:, None], torch.maximum(labels.held, harmless)[:, matters]], 1)
        compared = torch.unique(compared - compared.amin(0), dim=1)  # many steps differ by what all labels hold
        kept: list[int] = []
        seen = 0
        while seen < len(compared) and len(kept) < width:
            some = compared[seen : seen + BLOCK]
            by_others = _dominates(compared[kept], some).any(0)
            by_one_of_them = _dominates(some, some).triu(1).any(0)
            kept += (seen + (~(by_others | by_one_of_them)).nonzero()[:, 0]).tolist()
            seen += len(some)
        return labels.only(torch.tensor(kept)), float(bounds[seen]) if seen < len(bounds) else math.inf

    def _extended(self, labels: _Labels, stop: int, numbers: Tensor) -> _Labels:
        """By each of some segments to a place, if that can be completed within the limit and in less time."""
        cost = labels.cost[:, None] + self.costs[numbers]
        label, number = ((cost + self.left.rest[stop]).amax(2) < self.time - HALF).nonzero(as_tuple=True)
        segment = numbers[number]
        held = labels.held[label] + self.paths.alive[segment]
        new = _Labels(
            labels.time[label] + self.paths.time[segment], held, cost[label, number], torch.stack([segment, label], 1)
        )
        return new.only((held + self.left.least[stop]).amax(1) <= self.limit)

    def _way(self, came: Sequence[Tensor], last: Tensor) -> list[int]:
        """The segments of a path that ends with a label."""
        segment, label = last.tolist()
        way = [segment]
        while place := self.paths.segments[segment].start:
            segment, label = came[place][label].tolist()
            way.append(segment)
        return way[::-1]


def _dominates(rows: Tensor, others: Tensor) -> Tensor:
    """[rows, others]: whether a row is nowhere larger than another one."""
    return (rows[:, None] - others).amax(2) <= 0


def _joined(labels: Sequence[_Labels]) -> _Labels:
    return _Labels(*map(torch.cat, zip(*labels, strict=True)))
