"""Timing the kernels of compiled graphs, each apart from the others, where they can be told apart."""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol

import torch

from aotkit.launches.graph_launches import Around

MOST_HIDDEN_SECONDS = 0.05  # of launching
FLUSH_BYTES = 256 * 2**20  # more than the L2 cache of any GPU
FLUSH_SECONDS = 3e-5  # no GPU is faster

Run = Callable[[Around], Sequence[Any]]


class Clock(Protocol):
    """Measures one run at a time."""

    def measure(self, run: Run) -> tuple[Sequence[Any], float, dict[int, float]]:
        """Returns:
        (what `run` returns, the seconds that it takes, the seconds inside of each `around(i)`).
        """
        ...


def clock_for(device: torch.device) -> Clock:
    """Processor time on a CPU, device time between events on a GPU."""
    return _CudaClock(device) if device.type == "cuda" else _CpuClock()


class _Span:
    """Calls one function when it is entered, and another one when it is left."""

    def __init__(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self._begin, self._end = begin, end

    def __enter__(self) -> None:
        self._begin()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()


class _CpuClock:
    def measure(self, run: Run) -> tuple[Sequence[Any], float, dict[int, float]]:
        began: dict[int, float] = {}
        spans: dict[int, float] = {}

        def begin(i: int) -> None:
            began[i] = time.perf_counter()

        def end(i: int) -> None:
            spans[i] = spans.get(i, 0.0) + time.perf_counter() - began[i]

        def around(i: int) -> AbstractContextManager[None]:
            return _Span(lambda: begin(i), lambda: end(i))

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

    def measure(self, run: Run) -> tuple[Sequence[Any], float, dict[int, float]]:
        pairs: list[tuple[int, Any, Any]] = []

        def around(i: int) -> AbstractContextManager[None]:
            start, end = events()
            pairs.append((i, start, end))
            return _Span(start.record, end.record)

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
        spans: dict[int, float] = {}
        for i, first, last in pairs:
            spans[i] = spans.get(i, 0.0) + seconds_between(first, last)
        return results, seconds_between(start, end), spans
