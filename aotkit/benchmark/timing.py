"""Interleaved timing: every variant once a round, so that a machine that slows down slows all of them alike.

Forward and backward are timed apart. Medians and quartiles stand for each; a variant is compared with another round by
round, which cancels what both suffered.
"""

import gc
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from aotkit.launches import Flush, events, seconds_between
from aotkit.runtime import without_garbage_collection

FEWEST_ROUNDS = 7
MOST_ROUNDS = 1000
WARM_UP_ROUNDS = 3
WARM_UP_SHARE = 0.2  # of the time that measuring may take
MOST_HIDDEN_SECONDS = 2e-3  # launching takes longer only where there is much to launch


K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Step:
    """One training step.

    Attributes:
        prepare: what is not timed: resets gradients.
        forward: returns what `backward` takes.
        backward: None if there is nothing to differentiate.
    """

    prepare: Callable[[], None]
    forward: Callable[[], Any]
    backward: Callable[[Any], None] | None


@dataclass
class Samples:
    """Seconds of one phase, one number a round.

    Attributes:
        wall: from call to return; on a GPU, until it has finished.
        cpu: of the calling thread alone: other processes hardly disturb it, but it does not see torch's other threads.
        device: between two events on the GPU, with a cold L2 cache; empty on a CPU.
    """

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    device: list[float] = field(default_factory=list)

    @property
    def main(self) -> list[float]:
        """What to judge by: the device's time where there is one, else wall time."""
        return self.device or self.wall


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half of the interquartile range, as a fraction of the median."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0

    def overlaps(self, other: "Spread") -> bool:
        return self.low <= other.high and other.low <= self.high


Phases = Mapping[str, Samples]


def spread(values: Sequence[float]) -> Spread:
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(statistics.median(values), low, high)


def speedup(base: Sequence[float], other: Sequence[float]) -> Spread:
    """How many times faster `other` is: the ratio of the medians, with the quartiles of the ratios round by round."""
    rounds = spread([b / o for b, o in zip(base, other, strict=True)])
    ratio = statistics.median(base) / statistics.median(other)
    return Spread(ratio, min(rounds.low, ratio), max(rounds.high, ratio))


def interleave(
    steps: Mapping[K, Step], seconds: float, *, cuda: bool = False
) -> tuple[dict[K, Phases], dict[K, Exception]]:
    """Time all steps for about `seconds` altogether, but at least seven rounds; warm-up comes on top.

    Returns:
        (phases of each step, the exception of each step that raised): the first has no entry for those.
    """
    running, failed = dict(steps), dict[K, Exception]()
    samples: dict[K, dict[str, Samples]] = {name: {} for name in steps}
    measure = _CudaClock() if cuda else _measure_on_cpu

    def play(order: Sequence[K], record: bool) -> None:
        for name in order:
            try:
                times = measure(running[name])
            except Exception as e:
                failed[name] = e
                del running[name]
                del samples[name]
                continue
            for phase, clocks in times.items() if record else ():
                kept = samples[name].setdefault(phase, Samples())
                for clock, value in clocks.items():
                    getattr(kept, clock).append(value)

    gc.collect()
    with without_garbage_collection():
        for _ in _rounds(1, WARM_UP_ROUNDS, seconds * WARM_UP_SHARE):
            play(list(running), record=False)
        for i in _rounds(FEWEST_ROUNDS, MOST_ROUNDS, seconds):
            names = list(running)
            first = i % max(len(names), 1)
            play(names[first:] + names[:first], record=True)
    return dict(samples), failed


def _rounds(fewest: int, most: int, seconds: float) -> Iterator[int]:
    end = time.perf_counter() + seconds
    for i in range(most):
        if i >= fewest and time.perf_counter() > end:
            return
        yield i


Times = dict[str, dict[str, float]]


def _measure_on_cpu(step: Step) -> Times:
    times: Times = {}
    step.prepare()
    result = _timed(times, "forward", step.forward)
    if step.backward is not None:
        _timed(times, "backward", step.backward, result)
    return times


def _timed(times: Times, phase: str, run: Callable[..., Any], *args: Any) -> Any:
    wall, cpu = time.perf_counter(), time.thread_time()
    result = run(*args)
    cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
    times[phase] = {"wall": wall, "cpu": cpu}
    return result


class _CudaClock:
    """Each step runs twice: once for wall time, once between events, where the flush hides the launching."""

    def __init__(self) -> None:
        self._flush = Flush(torch.device("cuda"))

    def __call__(self, step: Step) -> Times:
        times: Times = {}
        step.prepare()
        torch.cuda.synchronize()
        result = _timed(times, "forward", _finished(step.forward))
        if step.backward is not None:
            _timed(times, "backward", _finished(step.backward), result)
        del result
        step.prepare()
        forward, result = self._on_device(times["forward"], step.forward)
        marks = {"forward": forward}
        if step.backward is not None:
            marks["backward"], _ = self._on_device(times["backward"], step.backward, result)
        torch.cuda.synchronize()
        for phase, (start, end) in marks.items():
            times[phase]["device"] = seconds_between(start, end)
        return times

    def _on_device(self, clocks: dict[str, float], run: Callable[..., Any], *args: Any) -> tuple[tuple[Any, Any], Any]:
        start, end = events()
        # Until the GPU comes to the start, everything is launched, unless that takes longer than it did before.
        self._flush(min(clocks["wall"], MOST_HIDDEN_SECONDS))
        start.record()
        result = run(*args)
        end.record()
        return (start, end), result


def _finished(run: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        result = run(*args)
        torch.cuda.synchronize()
        return result

    return call
