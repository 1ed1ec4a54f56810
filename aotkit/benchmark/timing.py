"""Interleaved timing: every variant once a round, so that a machine that slows down slows all of them alike.

Forward and backward are timed apart. Medians and quartiles stand for each; a variant is compared with another round by
round, which cancels what both suffered.
"""

import gc
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch

from aotkit.launches import (
    Flush,
    Phases,
    Samples,
    Spread,
    Step,
    Tell,
    events,
    seconds_between,
    silent,
    speedup,
    spread,
)
from aotkit.runtime import without_garbage_collection

__all__ = ["Phases", "Samples", "Spread", "Step", "Tell", "interleave", "silent", "speedup", "spread"]

FEWEST_ROUNDS = 7
MOST_ROUNDS = 1000
WARM_UP_ROUNDS = 3
WARM_UP_SHARE = 0.2  # of the time that measuring may take
MOST_HIDDEN_SECONDS = 2e-3  # launching takes longer only where there is much to launch

K = TypeVar("K", bound=Hashable)


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
        times = _measure_on_cpu(step.until_the_gpu_is_done())
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
