"""What torch's allocators hand out while something runs."""

from collections.abc import Callable

import torch
from torch.autograd.profiler import profile


def most_allocated(step: Callable[[], object], device: torch.device) -> int:
    """The most bytes that are allocated at a time while `step` runs, beyond what was allocated when it began.

    Memory that kernels take without torch's allocator, such as the scratch of oneDNN, does not count.
    """
    if device.type != "cuda":
        return _most_on_cpu(step)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _most_on_cpu(step: Callable[[], object]) -> int:
    """There the allocator keeps no statistics, but tells the profiler of each block that comes and goes."""
    with profile(profile_memory=True, use_kineto=True) as events:
        step()
    assert events.kineto_results is not None
    changes = [(e.start_ns(), e.nbytes()) for e in events.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for _, nbytes in sorted(changes, key=lambda change: change[0]):
        now += nbytes
        most = max(most, now)
    return most
