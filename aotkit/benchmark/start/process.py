"""One first step, in the process that this is the program of: `python -m aotkit.benchmark.start.process`.

Its arguments are names of a device, a workload, and a way to compile; it prints JSON.
"""

import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from aotkit.benchmark.start.workloads import WORKLOADS

EAGER, TORCH_COMPILE, OURS, UNCHECKED = WAYS = ("eager", "torch.compile", "aotkit", "aotkit, check=False")
STEPS, WARM_UP = 10, 3


def first_step(device: str, name: str, way: str) -> dict[str, Any]:
    """Seconds until the first training step is done, from before anything of a compiler is imported.

    Returns:
        `first`: these; `step`: seconds of each later step; `phases`: seconds of parts of the first one, without the
        parts in them.
    """
    torch.manual_seed(0)
    with torch.device(device):
        function, inputs = WORKLOADS[device][name]()
    step(function, inputs, device)  # libraries and memory are in place
    start = time.perf_counter()
    compiled = _compiled(function, way)
    step(compiled, inputs, device)
    first = time.perf_counter() - start
    for _ in range(WARM_UP):
        step(compiled, inputs, device)
    times = []
    for _ in range(STEPS):
        start = time.perf_counter()
        step(compiled, inputs, device)
        times.append(time.perf_counter() - start)
    return {"first": first, "step": statistics.median(times), "phases": _phases(compiled, inputs, way)}


def step(function: Callable[..., Any], inputs: Mapping[str, Tensor], device: str) -> None:
    """Forward and backward."""
    result = function(**inputs)
    getattr(result, "loss", result).sum().backward()
    if device == "cuda":
        torch.cuda.synchronize()


def _compiled(function: Callable[..., Any], way: str) -> Callable[..., Any]:
    if way == EAGER:
        return function
    if way == TORCH_COMPILE:
        return torch.compile(function)
    if way not in (OURS, UNCHECKED):
        raise ValueError(f"{way!r} is none of {', '.join(map(repr, WAYS))}.")
    import aotkit

    return aotkit.compile(function, check=way == OURS)


def _phases(compiled: Any, inputs: Mapping[str, Tensor], way: str) -> dict[str, float]:
    if way == EAGER:
        return {}
    if way == TORCH_COMPILE:
        from aotkit.torch_private.dynamo import phases

        return phases()
    found: dict[str, float] = {}

    def add(stages: Any) -> None:
        for stage in stages:
            inside = sum(part.seconds for part in stage.stages)
            found[stage.name] = found.get(stage.name, 0.0) + stage.seconds - inside
            add(stage.stages)

    add(compiled.timeline(**inputs).stages)
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(first_step(*sys.argv[1:])))
