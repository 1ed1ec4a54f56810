"""Time that tests decide about: benchmarks read it, and no other process changes it."""

import pytest

from aotkit.benchmark import timing

READING = 1e-6


class Clock:
    """Stands for the module `time`: each reading takes a microsecond, and nothing else takes any but `sleep`."""

    def __init__(self) -> None:
        self._now = self._running = 0.0

    def perf_counter(self):
        self._now += READING
        return self._now

    def thread_time(self):
        self._running += READING
        return self._running

    def sleep(self, seconds):
        self._now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    return clock
