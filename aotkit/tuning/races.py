"""Which of several runs takes the least time: rounds over all that are still in, of which the slower half goes."""

import gc
import math
import random
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from aotkit.launches import Spread, speedup, spread
from aotkit.runtime import without_garbage_collection

FEWEST, MOST = 7, 1000  # rounds; the fewest are before any goes, and then twice as many, and so on
NEAR = 0.01  # of the least time: repetitions of a whole run differ by more
DOUBT = 0.01  # how often something as fast is taken for slower

K = TypeVar("K", bound=Hashable)
Sample = Callable[[], float]  # makes one, and returns its seconds


@dataclass
class Race(Generic[K]):
    """What came of it.

    Attributes:
        seconds: of each, one number a round, as long as it was in.
        left: those that were in to the end.
        failed: what those raised that did not run.
    """

    seconds: dict[K, list[float]] = field(default_factory=dict)
    left: list[K] = field(default_factory=list)
    failed: dict[K, Exception] = field(default_factory=dict)

    def spread(self, key: K) -> Spread | None:
        """Median and quartiles of one; None if it was not timed."""
        return spread(found) if (found := self.seconds.get(key)) else None

    def ratio(self, key: K) -> Spread | None:
        """How much time one takes, with the fastest one's as 1, over the rounds in which both were in."""
        if not (own := self.seconds.get(key)) or not self.left:
            return None
        best = self.seconds[self.ranked()[0]][: len(own)]
        return speedup(own[: len(best)], best)

    def alike(self) -> list[K]:
        """Those that are not certainly slower than the fastest, in the order in which they were given."""
        medians = self._medians()
        best = self.seconds[min(medians, key=medians.__getitem__)] if medians else ()
        return [key for key in self.left if not _is_slower(self.seconds[key], best)]

    def ranked(self) -> list[K]:
        """Those that were in to the end, fastest first; of such as take the same time, the first that was given."""
        medians = self._medians()
        most = (1 + NEAR) * min(medians.values(), default=0.0)
        near = [key for key in self.left if medians[key] <= most]
        return [*near, *sorted((key for key in self.left if key not in near), key=medians.__getitem__)]

    def _medians(self) -> dict[K, float]:
        return {key: spread(self.seconds[key]).median for key in self.left}


def race(
    runs: Mapping[K, Sample], seconds: float, *, keep: int | None = 1, clock: Callable[[], float] = time.perf_counter
) -> Race[K]:
    """Time all for about so long, at least seven rounds, or until it is decided.

    In each round every one that is still in has its turn, in an order that is drawn anew. After seven rounds, and each
    time that there are twice as many, the slower half goes, but not those of which that is not certain: see
    `least_median`.

    Args:
        keep: how many stay in any case, after which it ends; None: all do, for all of the time.
    """
    found = Race[K]({key: [] for key in runs}, [*runs])
    draw = random.Random(0)  # the same order in every process
    end, next_cut = clock() + seconds, FEWEST
    gc.collect()
    with without_garbage_collection():
        for number in range(MOST):
            if number >= FEWEST and (clock() > end or (keep is not None and len(found.left) <= keep)):
                break
            for key in draw.sample(found.left, len(found.left)):
                _take(found, key, runs[key])
            if keep is not None and number + 1 == next_cut:
                next_cut *= 2
                found.left = _faster_half(found, keep)
    return found


def _take(found: Race[K], key: K, run: Sample) -> None:
    try:
        found.seconds[key].append(run())
    except Exception as e:
        found.failed[key] = e
        found.left.remove(key)
        del found.seconds[key]


def _faster_half(found: Race[K], keep: int) -> list[K]:
    by_time = sorted(found.left, key=lambda key: spread(found.seconds[key]).median)
    most = max(keep, (len(by_time) + 1) // 2)
    slow = {key for key in by_time[most:] if _is_slower(found.seconds[key], found.seconds[by_time[0]])}
    return [key for key in found.left if key not in slow]


def _is_slower(own: Sequence[float], best: Sequence[float]) -> bool:
    """Whether it is certain that it takes longer, by more than `NEAR`."""
    return least_median([a / b for a, b in zip(own, best, strict=True)]) > 1 + NEAR


def least_median(values: Sequence[float]) -> float:
    """What the median is above, but for one time in a hundred, whatever they are distributed like: by the sign test.

    That is the least of seven, and with more it comes closer to their own median. Of fewer nothing is known.
    """
    n, below, chance = len(values), 0, 0.0
    while (chance := chance + math.comb(n, below) / 2**n) <= DOUBT:
        below += 1
    return sorted(values)[below - 1] if below else -math.inf
