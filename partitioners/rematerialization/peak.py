"""Time against the peak of memory: the fastest cut with which forward and backward never hold more than a limit.

What each segment holds over time adds up, so a cut is a path through the places, and its peak is the most that its
segments hold together at any step. The fastest path within the limit is found exactly, unless there are too many to
tell (`labels`): so the path of a larger limit takes no more time. What a segment saves for the next one, which does not
read it, is not saved in the end: the choice may take less than its path, and hold less, which the search does not know.
So the choice of a larger limit may take a little more time, where there are skip connections: 0.04 % in a U-Net.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from aotkit.aot import outside_tracing
from aotkit.inspection import bytes_alive
from aotkit.partitioners.rematerialization.labels import fastest_path
from aotkit.partitioners.rematerialization.lifetimes import Lifetimes
from aotkit.partitioners.rematerialization.paths import Path, Paths
from aotkit.partitioners.rematerialization.segments import segments
from aotkit.partitioners.rematerialization.tradeoff import Choice, OverBudget, Tradeoff
from aotkit.partitioners.rematerialization.values import Values


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
