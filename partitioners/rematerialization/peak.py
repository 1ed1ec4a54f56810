"""Time against the peak of memory: the fastest cut with which forward and backward never hold more than a limit.

What each segment holds over time adds up, so a cut is a path through the places, and its peak is the most that its
segments hold together at any step. Bytes get a price at each step; for given prices a shortest path is the best cut.
The prices move to the steps where there is too much (Freund and Schapire's multiplicative weights, 1999), as in a game:
for each price of a byte of the peak this comes close to the best of time and peak together. What is found on the way is
then mended step by step: segments are exchanged, merged and split while that saves time within the limit.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from aotkit.aot import outside_tracing
from aotkit.inspection.memory import bytes_alive
from aotkit.partitioners.rematerialization.lifetimes import Lifetimes
from aotkit.partitioners.rematerialization.segments import Segment, segments
from aotkit.partitioners.rematerialization.tradeoff import Choice, OverBudget, Tradeoff
from aotkit.partitioners.rematerialization.values import Values

PRICES = 24
ROUNDS = 20
RATE = 4.0  # of the multiplicative weights
STARTS = 3


def paths_of(values: Values, costs: Tradeoff, lifetimes: Lifetimes) -> "Paths":
    """All ways to cut a joint graph that are tried.

    Raises:
        Impossible: there is none.
    """
    with _small_tensors():
        return Paths(list(segments(values, costs, lifetimes)), lifetimes)


def fastest_below(paths: "Paths", costs: Tradeoff, lifetimes: Lifetimes, limit: int) -> tuple[Choice, int]:
    """(the fastest choice found whose peak is within a limit, its peak).

    Its gap is among all that break the forward pass at the same places.

    Raises:
        OverBudget: none was found.
    """

    def cut(path: Path) -> tuple[Choice, int]:
        choice = costs.choice({value for number in path.segments for value in paths.segments[number].saved})
        gap = paths.gap(path, limit) / max(costs.anyway + choice.time, 1)
        return replace(choice, gap=gap), peak_of(choice, costs, lifetimes)

    with _small_tensors():
        target = limit
        while target >= paths.smallest.peak:
            choice, peak = cut(paths.fastest_below(target))
            if peak <= limit:
                return choice, peak
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


@dataclass(frozen=True)
class Path:
    """Segments, one after the other.

    Attributes:
        segments: their numbers.
        time: in units of the problem.
        peak: bytes.
    """

    segments: tuple[int, ...]
    time: float
    peak: float


class Paths:
    """All ways to put segments one after the other.

    Attributes:
        alive: [segments, steps], bytes.
        fixed: [steps], what is alive besides.
    """

    def __init__(self, segments: Sequence[Segment], lifetimes: Lifetimes) -> None:
        self.segments = segments
        self.places = 1 + max(segment.stop for segment in segments)
        rows = [bytes_alive(lifetimes.spans(s.saved, s.recomputed), lifetimes.steps) for s in segments]
        self.alive = torch.tensor(rows, dtype=torch.float64)
        self.fixed = torch.tensor(lifetimes.fixed, dtype=torch.float64)
        self.time = torch.tensor([s.time for s in segments], dtype=torch.float64)
        self.between: dict[tuple[int, int], list[int]] = {}
        for number, s in sorted(enumerate(segments), key=lambda item: item[1].stop):
            self.between.setdefault((s.start, s.stop), []).append(number)

    def path(self, segments: Sequence[int]) -> Path:
        """What segments take together."""
        return Path(tuple(segments), float(self.time[list(segments)].sum()), float(self.held(segments).max()))

    def held(self, segments: Sequence[int]) -> Tensor:
        """[steps]: the bytes that are alive."""
        return self.fixed + self.alive[list(segments)].sum(0)

    def shortest(self, costs: Tensor) -> list[int]:
        """The segments of the path that costs least; each segment has a cost."""
        cost = costs.tolist()
        best, by = [0.0, *[math.inf] * (self.places - 1)], [-1] * self.places
        for (start, stop), choices in self.between.items():
            cheapest = min(choices, key=cost.__getitem__)
            if best[start] + cost[cheapest] < best[stop]:
                best[stop], by[stop] = best[start] + cost[cheapest], cheapest
        path = [by[-1]]
        while start := self.segments[path[-1]].start:
            path.append(by[start])
        return path[::-1]

    @cached_property
    def explored(self) -> tuple[list[Path], list[tuple[float, float]]]:
        """(paths of which none is slower and larger than another, lower bounds).

        A bound is a (price, least) such that no path takes less time than least - price * its peak.
        """
        found, bounds = [self.path(self.shortest(self.time))], []
        weights = torch.full_like(self.fixed, 1 / len(self.fixed))
        # From a price beside which time does not matter to one that hardly matters itself.
        whole = float(self.time.max()) / float(self.fixed.max() + self.alive.max())
        for price in (whole * 10.0**-k for k in torch.linspace(-6, 4, PRICES).tolist()):
            for _ in range(ROUNDS):
                path = self.shortest(self.time + price * (self.alive @ weights))
                held = self.held(path)
                found.append(Path(tuple(path), float(self.time[path].sum()), float(held.max())))
                bounds.append((price, found[-1].time + price * float(held @ weights)))
                weights = weights * torch.exp(RATE * (held / held.max() - 1))
                weights = weights / weights.sum()
        return _best(found), bounds

    @property
    def smallest(self) -> Path:
        """Of those that are known."""
        return self.explored[0][0]

    def fastest_below(self, limit: float) -> Path:
        """The fastest path found whose peak is within a limit, which is not below that of the smallest one."""
        found, _ = self.explored
        within = [path for path in found if path.peak <= limit]
        beyond = found[len(within) :]
        starts = within[-STARTS:]
        starts = [self.crossed(path, other, limit) for path in starts for other in (path, *beyond[:STARTS])]
        return min((self.improved(path, limit) for path in starts), key=lambda path: path.time)

    def gap(self, path: Path, limit: float) -> float:
        """By how much time another path within a limit may be faster at most."""
        _, bounds = self.explored
        return max(0.0, path.time - max(least - price * limit for price, least in bounds))

    def crossed(self, path: Path, other: Path, limit: float) -> Path:
        """The fastest path within a limit that takes one way, for a part of it another, and then the first again."""
        ways = [{self.segments[n].start: n for n in p.segments} for p in (path, other)]
        common = [*sorted(ways[0].keys() & ways[1].keys()), self.places - 1]
        more_time, more_held = [0.0], [torch.zeros_like(self.fixed)]
        for start, stop in itertools.pairwise(common):
            old, new = ([n for place, n in way.items() if start <= place < stop] for way in ways)
            more_time.append(more_time[-1] + float(self.time[new].sum() - self.time[old].sum()))
            more_held.append(more_held[-1] + self.alive[new].sum(0) - self.alive[old].sum(0))
        time, extra, held = torch.tensor(more_time), torch.stack(more_held), self.held(path.segments)
        best, part = 0.0, (0, 0)
        for i in range(len(common) - 1):
            fits = (held + extra[i + 1 :] - extra[i]).amax(1) <= limit
            saved = torch.where(fits, time[i] - time[i + 1 :], 0.0)
            if float(saved.max()) > best:
                best, part = float(saved.max()), (common[i], common[i + 1 + int(saved.argmax())])
        chosen = {p: n for p, n in ways[0].items() if not part[0] <= p < part[1]}
        chosen |= {p: n for p, n in ways[1].items() if part[0] <= p < part[1]}
        return self.path([n for _, n in sorted(chosen.items())])

    def improved(self, path: Path, limit: float) -> Path:
        """Exchange segments, the most useful one first, as long as that saves time within a limit."""
        while (better := max(self._exchanges(path, limit), key=lambda p: -p.time, default=path)).time < path.time:
            path = better
        return path

    def _exchanges(self, path: Path, limit: float) -> Iterator[Path]:
        held = self.held(path.segments)
        for i in range(len(path.segments)):
            for count in range(1, min(3, len(path.segments) - i) + 1):
                old = list(path.segments[i : i + count])
                start, stop = self.segments[old[0]].start, self.segments[old[-1]].stop
                rest, before = held - self.alive[old].sum(0), float(self.time[old].sum())
                middles = [None, *range(start + 1, stop)] if count < 3 else [None]
                for middle in middles:
                    new = self._fastest(start, middle, stop, rest, limit)
                    if new and float(self.time[new].sum()) < before:
                        yield self.path([*path.segments[:i], *new, *path.segments[i + count :]])

    def _fastest(self, start: int, middle: int | None, stop: int, rest: Tensor, limit: float) -> list[int]:
        """The fastest one or two segments with which no more than a limit is held."""
        if middle is None:
            choices = [[s] for s in self.between.get((start, stop), ())]
        else:
            first, second = self.between.get((start, middle), ()), self.between.get((middle, stop), ())
            choices = [[s, t] for s in first for t in second]
        if not choices:
            return []
        numbers = torch.tensor(choices)
        fits = (rest + self.alive[numbers].sum(1)).amax(1) <= limit
        time = torch.where(fits, self.time[numbers].sum(1), math.inf)
        best = int(time.argmin())
        return choices[best] if fits[best] else []


def _best(paths: Sequence[Path]) -> list[Path]:
    """Those of which no other is faster and smaller, the smallest first."""
    kept: list[Path] = []
    for path in sorted(paths, key=lambda p: (p.peak, p.time)):
        if not kept or path.time < kept[-1].time:
            kept.append(path)
    return kept
