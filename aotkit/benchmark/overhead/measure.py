"""Workloads x phases x variants -> times.

All run interleaved in this process, on one thread. A sample is many calls one after the other, none timed alone.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from aotkit.benchmark.overhead.report import OverheadReport, Row
from aotkit.benchmark.overhead.variants import Calls, Reference, Variants, clear, variants
from aotkit.benchmark.overhead.workloads import BACKWARD, FORWARD, NO_GRAD, STEP, Workload, build
from aotkit.benchmark.report import in_words, machine
from aotkit.benchmark.timing import Samples, Step, Tell, interleave, silent
from aotkit.torch_private import native

# Of eager in one sample: a thousand times what reading the clock costs, and many times what waiting for a GPU does.
SAMPLE_SECONDS = {"cpu": 1.5e-3, "cuda": 6e-3}
MOST_CALLS = 400
MOST_GRAPHS = 64  # built before a sample of backward, all alive at once
THREADS = 1


def overhead(
    names: Sequence[str],
    *,
    device: str = "cpu",
    seconds: float,
    rivals: Variants | None = None,
    progress: Tell = silent,
) -> OverheadReport:
    """Time the workloads of these names; each variant's results and gradients are compared with eager's first.

    Args:
        names: of `workloads_on(device)`.
        device: "cpu" judges by CPU time, "cuda" by wall time until the GPU has finished.
        seconds: how long to measure each, after compiling and warming up; at least seven rounds are played.
        rivals: what to compare, eager among them; None: all that can run here.
    """
    rivals = variants(device) if rivals is None else rivals
    progress("building the C++ tier of calls, unless it is there")
    native.build()
    report = OverheadReport(machine(device), torch.__version__, THREADS, device)
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        for name in names:
            # What Dynamo compiled for one workload must not slow the next one's guards.
            torch.compiler.reset()
            report.rows += _rows(build(name, device), rivals, device, seconds, progress)
    finally:
        torch.set_num_threads(threads)
    return report


def _rows(workloads: Sequence[Workload], rivals: Variants, device: str, seconds: float, tell: Tell) -> list[Row]:
    """Of workloads that are timed together, which differ in the number of shapes."""
    rows: dict[tuple[int, str, str], Row] = {}
    steps: dict[tuple[int, str, str], Step] = {}
    for workload in workloads:
        reference, shapes = Reference(workload), len(workload.calls)
        checked = _checked(workload, reference, rivals, tell)
        for phase in workload.phases:
            once = _step(phase, workload, Calls(workload.fn, workload.fn), reference.cotangents, device)
            cycles = _cycles(phase, once, shapes, device)
            for name, (calls, problem) in checked.items():
                if calls and phase == BACKWARD and not calls.results_wait:
                    continue
                key = shapes, phase, name
                rows[key] = Row(workload.name, phase, shapes, name, cycles * shapes, problem=problem)
                if calls:
                    steps[key] = _step(phase, workload, calls, reference.cotangents, device, cycles)
    tell(f"{workloads[0].name}: timing for about {seconds:.0f} s")
    times, failed = interleave(steps, seconds)
    for key, phases in times.items():
        row, samples = rows[key], phases["forward"]
        row.samples = Samples([t / row.calls for t in samples.wall], [t / row.calls for t in samples.cpu])
    for key, error in failed.items():
        rows[key].fail(error)
    return list(rows.values())


def _checked(
    workload: Workload, reference: Reference, rivals: Variants, tell: Tell
) -> dict[str, tuple[Calls | None, str | None]]:
    """Name of a variant -> how to call it, or what is wrong with it."""
    checked: dict[str, tuple[Calls | None, str | None]] = {}
    shapes = f" ({len(workload.calls)} shapes)" if len(workload.calls) > 1 else ""
    for i, (name, set_up) in enumerate(rivals.items(), 1):
        tell(f"{workload.name}{shapes}: compiling and checking {name} ({i} of {len(rivals)})")
        try:
            calls = set_up(workload)
            problem = reference.difference(calls)
        except Exception as e:
            problem = in_words(e)
        checked[name] = (None, problem) if problem else (calls, None)
    return checked


def _cycles(phase: str, step: Step, calls: int, device: str) -> int:
    """How often to go through all calls in one sample, by the time of eager's step, which does so once."""
    times = []
    for _ in range(5):
        step.prepare()
        start = time.perf_counter()
        step.forward()
        times.append(time.perf_counter() - start)
    most = MOST_GRAPHS if phase == BACKWARD else MOST_CALLS
    return max(1, min(most // calls, round(SAMPLE_SECONDS[device] / min(times))))


def _step(
    phase: str, workload: Workload, calls: Calls, cotangents: Sequence[Tensor], device: str, cycles: int = 1
) -> Step:
    """One sample of a phase."""
    arguments = list(zip(workload.calls, cotangents, strict=True)) * cycles
    leaves, graphs = workload.leaves, list[Any]()

    def forward() -> None:
        for args, _ in arguments:
            calls.grad(*args)

    def no_grad() -> None:
        with torch.no_grad():
            for args, _ in arguments:
                calls.no_grad(*args)

    def build_graphs() -> None:
        graphs[:] = [(calls.grad(*args), cotangent) for args, cotangent in arguments]

    def backward() -> list[Any]:
        ready = graphs.copy()
        graphs.clear()
        for result, cotangent in ready:
            result.backward(cotangent)
            clear(leaves)
        return ready  # to be freed outside of the clock: the sample of forward has freed its graphs

    def forward_backward() -> None:
        for args, cotangent in arguments:
            calls.grad(*args).backward(cotangent)  # type: ignore[no-untyped-call]
            clear(leaves)

    run = {FORWARD: forward, BACKWARD: backward, NO_GRAD: no_grad, STEP: forward_backward}[phase]
    step = Step(build_graphs if phase == BACKWARD else lambda: None, run)
    return step if device == "cpu" else step.until_the_gpu_is_done()
