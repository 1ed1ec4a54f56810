"""Timing the kernels of compiled graphs, each apart from the others, where they can be told apart."""

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from aotkit.stages import Around

MOST_HIDDEN_SECONDS = 0.05  # of launching
FLUSH_BYTES = 256 * 2**20  # more than the L2 cache of any GPU
FLUSH_SECONDS = 3e-5  # no GPU is faster

Run = Callable[[Around], Sequence[Any]]
# What a run returns, the seconds that it takes, and the seconds inside of each `around(i)`.
Timing = tuple[Sequence[Any], float, Mapping[int, float]]
Clock = Callable[[Run], Timing]


def clock_for(device: torch.device) -> Clock:
    """Processor time on a CPU, device time between events on a GPU."""
    return _CudaClock(device) if device.type == "cuda" else _on_cpu


def _on_cpu(run: Run) -> Timing:
    spans: dict[int, float] = defaultdict(float)

    @contextmanager
    def around(i: int) -> Iterator[None]:
        start = time.perf_counter()
        yield
        spans[i] += time.perf_counter() - start

    start = time.perf_counter()
    results = run(around)
    return results, time.perf_counter() - start, spans


class Flush:
    """Reads so much that nothing else stays in the L2 cache of a GPU, which is busy with that meanwhile.

    It writes nothing: what it left there to be written back would be charged to what is timed, the more the more that
    reads. On an H200 reading 64 MiB then took 24.2 us instead of 18.4, copying half of it 20.3 instead of 17.7.
    """

    def __init__(self, device: torch.device) -> None:
        self._memory = torch.zeros(FLUSH_BYTES // 4, device=device)
        self._sum = torch.zeros((), device=device)

    def __call__(self, seconds: float) -> None:
        """Once, and then again for as many seconds or more: what is launched meanwhile waits, as in a queue."""
        for _ in range(1 + math.ceil(seconds / FLUSH_SECONDS)):
            torch.sum(self._memory, 0, out=self._sum)


def events() -> tuple[Any, Any]:
    """Two events, to record before and after what is timed on a GPU."""
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def seconds_between(start: Any, end: Any) -> float:
    """The seconds from one event to another, both of which the GPU has reached."""
    return float(start.elapsed_time(end)) / 1e3  # it counts milliseconds


class _CudaClock:
    """Between events on the device, which is kept busy until everything has been launched."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._flush = Flush(device)
        # Seconds of the last runs: a whole graph and one kernel by kernel, forward and backward, take turns.
        self._launching = deque([0.0], maxlen=4)

    def __call__(self, run: Run) -> Timing:
        pairs: list[tuple[int, Any, Any]] = []

        @contextmanager
        def around(i: int) -> Iterator[None]:
            start, end = events()
            pairs.append((i, start, end))
            start.record()
            yield
            end.record()

        with torch.cuda.device(self._device):
            torch.cuda.synchronize()
            self._flush(min(max(self._launching), MOST_HIDDEN_SECONDS))
            start, end = events()
            host = time.perf_counter()
            start.record()
            results = run(around)
            end.record()
            self._launching.append(time.perf_counter() - host)
            torch.cuda.synchronize()
        spans: dict[int, float] = defaultdict(float)
        for i, first, last in pairs:
            spans[i] += seconds_between(first, last)
        return results, seconds_between(start, end), spans
