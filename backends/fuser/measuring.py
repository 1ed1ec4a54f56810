"""How long kernels take, and which of them is the fastest."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

SECONDS = 1.0  # for all together, if the fewest rounds do not take longer
FEWEST, MOST = 3, 31  # rounds
LEAST = 0.03  # of the time of the first, by which another one has to be faster
FLUSHED = 2**28  # bytes: more than the L2 cache of any GPU

Run = Callable[[], Any]
Measure = Callable[[Sequence[Run], str], Sequence[Sequence[float]]]  # functions, type of a device -> seconds of each


def measured(runs: Sequence[Run], device: str) -> list[list[float]]:
    """The seconds that each function takes, several times, by turns: there and back. Each has run before."""
    once = _clock_of_cuda() if device == "cuda" else _seconds_on_cpu
    found = [[once(run)] for run in runs]
    turns = [*zip(runs, found, strict=True)]
    rounds = int(min(MOST, max(FEWEST, SECONDS / sum(map(sum, found)))))
    for _ in range(1, rounds):
        turns.reverse()
        for run, seconds in turns:
            seconds.append(once(run))
    return found


def _seconds_on_cpu(run: Run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _clock_of_cuda() -> Callable[[Run], float]:
    """Seconds of the GPU. It empties the cache before, and while it is busy with that, the kernel is launched."""
    memory = torch.zeros(FLUSHED // 4, device="cuda")

    def once(run: Run) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        memory.sum()
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    return once


def fastest(seconds: Sequence[Sequence[float]]) -> int:
    """Which one is the fastest: the first, unless another one is faster by more than `LEAST` and what varies."""
    medians = [*map(statistics.median, seconds)]
    best = min(range(len(medians)), key=medians.__getitem__)
    varies = max(_spread(seconds[0]), _spread(seconds[best]))
    return best if medians[best] < (1 - LEAST) * medians[0] - varies else 0


def _spread(seconds: Sequence[float]) -> float:
    """How far from their median half of the numbers are, at least."""
    middle = statistics.median(seconds)
    return statistics.median(abs(x - middle) for x in seconds)
