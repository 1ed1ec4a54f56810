"""What torch's allocators hand out while something runs."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.autograd.profiler import profile, record_function

from aotkit.runtime import without_garbage_collection

Mark = Callable[[], None]
MARK = "aotkit: until here"


def most_allocated(step: Callable[[], object], device: torch.device) -> int:
    """The most bytes that are allocated at a time while `step` runs, beyond what was allocated when it began.

    Memory that kernels take without torch's allocator, such as the scratch of oneDNN, does not count.
    """
    return max(most_between_marks(lambda mark: step(), device))


def most_between_marks(step: Callable[[Mark], object], device: torch.device) -> list[int]:
    """The same for each part of `step`, which calls its argument at the end of each part but the last."""
    with without_garbage_collection():
        return _on_cuda(step, device) if device.type == "cuda" else _on_cpu(step)


def _on_cuda(step: Callable[[Mark], object], device: torch.device) -> list[int]:
    found = []

    def mark() -> None:
        found.append(torch.cuda.max_memory_allocated(device) - before)
        torch.cuda.reset_peak_memory_stats(device)

    # The thread of backward passes on a GPU still holds values of the last one, until it has begun another.
    with torch.enable_grad():
        number = torch.ones((), device=device, requires_grad=True)
        torch.autograd.grad(number.sin(), number)
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    step(mark)
    torch.cuda.synchronize(device)
    mark()
    return found


def _on_cpu(step: Callable[[Mark], object]) -> list[int]:
    """There the allocator keeps no statistics, but tells the profiler of each block that comes and goes."""

    def mark() -> None:
        with record_function(MARK):
            pass

    with _quiet(), profile(profile_memory=True, use_kineto=True) as events:
        step(mark)
    assert events.kineto_results is not None
    told = [(e.start_ns(), e.name(), e) for e in events.kineto_results.events() if e.name() in ("[memory]", MARK)]
    found = []
    now = most = 0
    for _, name, event in sorted(told, key=lambda one: one[0]):
        if name == MARK:
            found.append(most)
            most = now
        else:
            now += event.nbytes()
            most = max(most, now)
    return [*found, most]


@contextmanager
def _quiet() -> Iterator[None]:
    """The profiler's library logs each start to standard error, unless its first start finds that it shall not."""
    if "KINETO_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["KINETO_LOG_LEVEL"] = "99"
    try:
        yield
    finally:
        del os.environ["KINETO_LOG_LEVEL"]
