"""What a call costs: eager, functorch's aot_function, torch.compile and aotkit on functions of little arithmetic.

All run interleaved in this process, on one thread. A sample is many calls one after the other, none timed alone.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from aotkit.benchmark.overhead_report import OverheadReport, Row, machine
from aotkit.benchmark.overhead_variants import Calls, Reference, Variants, clear, variants
from aotkit.benchmark.overhead_workloads import BACKWARD, FORWARD, NO_GRAD, STEP, Workload, build
from aotkit.benchmark.timing import Samples, Step, interleave
from aotkit.torch_private import native

# Of eager in one sample: a thousand times what reading the clock costs, and many times what waiting for a GPU does.
SAMPLE_SECONDS = {"cpu": 1.5e-3, "cuda": 6e-3}
MOST_CALLS = 400
MOST_GRAPHS = 64  # built before a sample of backward, all alive at once
THREADS = 1

Key = tuple[int, str, str]  # place in the group, phase, variant


def overhead(
    names: Sequence[str],
    *,
    device: str = "cpu",
    seconds: float,
    rivals: Variants | None = None,
    progress: Callable[[str], None] | None = None,
) -> OverheadReport:
    """Time the workloads of these names; each variant's results and gradients are compared with eager's first.

    Args:
        names: keys of `WORKLOADS`, or of `CUDA_WORKLOADS`.
        device: "cpu" judges by CPU time, "cuda" by wall time until the GPU has finished.
        seconds: how long to measure each, after compiling and warming up; at least seven rounds are played.
        rivals: what to compare, eager among them; None: all that can run here.
        progress: called with a line of text before each thing that takes long.
    """
    tell = progress or (lambda text: None)
    rivals = variants(device) if rivals is None else rivals
    tell("building the C++ tier of calls, unless it is there")
    native.build()
    report = OverheadReport(machine(device), torch.__version__, THREADS, device, [])
    with _threads(THREADS):
        for name in names:
            # What Dynamo compiled for one workload must not slow the next one's guards.
            torch.compiler.reset()
            report.rows += _Group(build(name, device), rivals, device, tell).rows(seconds)
    return report


class _Group:
    """Workloads that are timed together."""

    def __init__(
        self, workloads: Sequence[Workload], rivals: Variants, device: str, tell: Callable[[str], None]
    ) -> None:
        self._workloads = workloads
        self._device = device
        self._tell = tell
        self._steps: dict[Key, Step] = {}
        self._rows: dict[Key, Row] = {}
        for place, workload in enumerate(workloads):
            self._set_up(place, workload, rivals)

    def rows(self, seconds: float) -> list[Row]:
        self._tell(f"{self._workloads[0].name}: timing for about {seconds:.0f} s")
        times, failed = interleave(self._steps, seconds)
        for key, phases in times.items():
            row, samples = self._rows[key], phases["forward"]
            row.samples = Samples([t / row.calls for t in samples.wall], [t / row.calls for t in samples.cpu])
        for key, error in failed.items():
            self._rows[key].fail(error)
        return list(self._rows.values())

    def _set_up(self, place: int, workload: Workload, rivals: Variants) -> None:
        reference = Reference(workload)
        ready: dict[str, Calls] = {}
        problems: dict[str, str | Exception] = {}
        shapes = f" ({len(workload.calls)} shapes)" if len(workload.calls) > 1 else ""
        for i, (name, set_up) in enumerate(rivals.items(), 1):
            self._tell(f"{workload.name}{shapes}: compiling and checking {name} ({i} of {len(rivals)})")
            try:
                calls = set_up(workload)
                problem = reference.difference(calls)
            except Exception as e:
                problems[name] = e
                continue
            if problem is None:
                ready[name] = calls
            else:
                problems[name] = problem
        for phase in workload.phases:
            run = _Phase(phase, workload, reference, self._device)
            cycles = run.cycles()
            for name in rivals:
                key = (place, phase, name)
                row = Row(workload.name, phase, len(workload.calls), name, cycles * len(workload.calls))
                if name in problems:
                    row.fail(problems[name])
                elif phase == BACKWARD and not ready[name].results_wait:
                    continue
                else:
                    self._steps[key] = run.step(ready[name], cycles)
                self._rows[key] = row


class _Phase:
    """How one phase of a workload is run."""

    def __init__(self, phase: str, workload: Workload, reference: Reference, device: str) -> None:
        self._phase = phase
        self._workload = workload
        self._reference = reference
        self._device = device

    def cycles(self) -> int:
        """How often to go through all calls in one sample, by eager's time."""
        step, times = self.step(Calls(self._workload.fn, self._workload.fn), 1), []
        for _ in range(5):
            step.prepare()
            start = time.perf_counter()
            step.forward()
            times.append(time.perf_counter() - start)
        most = MOST_GRAPHS if self._phase == BACKWARD else MOST_CALLS
        return max(1, min(most // len(self._workload.calls), round(SAMPLE_SECONDS[self._device] / min(times))))

    def step(self, calls: Calls, cycles: int) -> Step:
        arguments = list(zip(self._workload.calls, self._reference.cotangents, strict=True)) * cycles
        leaves, graphs = self._workload.leaves, list[Any]()

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

        run = {FORWARD: forward, BACKWARD: backward, NO_GRAD: no_grad, STEP: forward_backward}[self._phase]
        prepare = build_graphs if self._phase == BACKWARD else _nothing
        return Step(prepare, run, None) if self._device == "cpu" else Step(_then_wait(prepare), _then_wait(run), None)


def _nothing() -> None:
    pass


def _then_wait(run: Callable[[], Any]) -> Callable[[], Any]:
    def call() -> Any:
        result = run()
        torch.cuda.synchronize()
        return result

    return call


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
