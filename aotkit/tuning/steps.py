"""What a training step of a candidate takes: seconds, and bytes."""

import time
from collections.abc import Callable
from typing import Any

import torch

from aotkit.launches import most_allocated
from aotkit.tuning.races import Sample
from aotkit.tuning.workload import Workload

SAMPLE_SECONDS = 2e-3  # a thousand times what reading the clock takes
MOST_STEPS = 400


def steps_a_sample(workload: Workload) -> int:
    """How many steps of the function in eager take as long as a sample should; one where each needs new inputs."""
    if workload.mutates:
        return 1
    workload.prepare()  # gradients are the caller's until then
    least = min(_seconds(workload, workload.fn, 1) for _ in range(3))
    return max(1, min(MOST_STEPS, round(SAMPLE_SECONDS / least)))


def sampler(workload: Workload, call: Callable[..., Any], count: int, *, backward: bool = True) -> Sample:
    """A function that takes so many steps, and returns the seconds of one. What is called has run before.

    Args:
        backward: whether a step has gradients; else it is a call under `no_grad`.
    """

    def sample() -> float:
        workload.prepare()
        with torch.set_grad_enabled(backward and torch.is_grad_enabled()):
            return _seconds(workload, call, count) / count

    return sample


def peak(workload: Workload, call: Callable[..., Any]) -> int:
    """The most bytes that are allocated at a time in a step, beyond what was before."""
    workload.prepare()
    found = most_allocated(lambda: _run(workload, call, 1), workload.device)
    workload.clear()
    return found


def _seconds(workload: Workload, call: Callable[..., Any], count: int) -> float:
    """From the first call to the end of the last step, on a GPU, too."""
    wait = torch.cuda.synchronize if workload.cuda else _nothing
    wait()
    start = time.perf_counter()
    _run(workload, call, count)
    wait()
    return time.perf_counter() - start


def _run(workload: Workload, call: Callable[..., Any], count: int) -> None:
    args, kwargs = workload.args, workload.kwargs
    if not workload.differentiates or not torch.is_grad_enabled():
        for _ in range(count):
            call(*args, **kwargs)
        return
    for _ in range(count):
        workload.backward(call(*args, **kwargs))
        workload.clear()


def _nothing() -> None:
    """On a CPU, what has been called is done."""
