"""Peak memory and time of training steps: eager, torch.compile under its memory budgets, and partitions of ours.

All variants of a model share its parameters and run interleaved in this process.
"""

import gc
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from aotkit.benchmark.evaluation import evaluate
from aotkit.benchmark.memory_report import MemoryReport, Row
from aotkit.benchmark.memory_variants import Variant, build
from aotkit.benchmark.outcome import judged_if_possible
from aotkit.benchmark.overhead_report import machine
from aotkit.benchmark.timing import Step, interleave
from aotkit.benchmark.transformers_models import single_sequences
from aotkit.compiled import CompiledModule, function_of
from aotkit.errors import TraceError
from aotkit.launches import most_allocated


def memory(
    models: Iterable[str],
    rows: Mapping[str, Variant],
    *,
    device: str = "cpu",
    seconds: float,
    progress: Callable[[str], None] | None = None,
) -> MemoryReport:
    """Measure the peak of one step of each variant, alone, then time the steps of all of them.

    Args:
        models: keys of `MODELS[device]`.
        rows: by their names.
        device: "cpu" or "cuda".
        seconds: how long to time each model; at least seven rounds are played.
        progress: called with a line of text before each thing that takes long.

    A KeyboardInterrupt while a row is compiled leaves out the rest of its model's; those before it are timed. One while
    they are timed leaves out the times.

    Raises:
        ImportError: transformers is missing or too old.
    """
    tell = progress or (lambda text: None)
    report = MemoryReport(machine(device), torch.__version__, device)
    for model in models:
        tell(f"{model}: building")
        subject = _Subject(model, device)
        with single_sequences():
            report.rows += subject.rows(rows, seconds, tell)
    return report


class _Subject:
    """A model with its inputs, which all variants share."""

    def __init__(self, name: str, device: str) -> None:
        self._name = name
        self._device = torch.device(device)
        self._module, self._inputs = build(name, device)
        self._alive = _storage_bytes([*self._module.parameters(), *self._module.buffers(), *self._inputs])

    def rows(self, variants: Mapping[str, Variant], seconds: float, tell: Callable[[str], None]) -> list[Row]:
        rows: list[Row] = []
        steps: dict[str, Step] = {}

        def judge(name: str) -> Row:
            tell(f"{self._name}: {name} ({[*variants].index(name) + 1} of {len(variants)})")
            row = Row(self._name, name)
            try:
                steps[name] = self._set_up(row, variants[name])
            except Exception as e:
                row.fail(e)
            finally:
                self._prepare()
            return row

        try:
            for row in judged_if_possible(variants, judge):
                rows.append(row)
        except KeyboardInterrupt:  # compiling takes minutes; what is compiled so far is not lost
            tell(f"{self._name}: interrupted, the other rows are left out")
        tell(f"{self._name}: timing for about {seconds:.0f} s")
        try:
            times, failed = interleave(steps, seconds, cuda=self._device.type == "cuda")
        except KeyboardInterrupt:
            tell(f"{self._name}: interrupted, the times are left out")
            times, failed = {}, {}
        self._prepare()
        for row in rows:
            if row.variant in times:
                row.seconds = times[row.variant]["forward"].main
            elif row.variant in failed:
                row.fail(failed[row.variant])
        return rows

    def _set_up(self, row: Row, variant: Variant) -> Step:
        """Compile a variant and measure its peak; fills `row`."""
        call = variant.compile(self._module)

        def step() -> None:
            call(*self._inputs).backward()  # type: ignore[no-untyped-call]

        self._prepare()
        start = time.perf_counter()
        with variant.setting():
            step()
            self._wait()
        row.compile_seconds = time.perf_counter() - start
        row.simulated_bytes = self._simulated(call)
        for _ in range(2):  # the first run of compiled code differs from later ones
            self._prepare()
            gc.collect()
            row.peak_bytes = self._alive + most_allocated(step, self._device)
        return Step(self._prepare, step, None)

    def _simulated(self, call: Any) -> int | None:
        if not isinstance(call, CompiledModule):
            return None
        try:
            graphs = function_of(call).graphs(*self._inputs)
        except TraceError:  # it runs in several pieces
            return None
        assert graphs.backward is not None
        return self._alive + evaluate(graphs.forward, graphs.backward, graphs.num_outputs).fused_peak_bytes

    def _prepare(self) -> None:
        self._module.zero_grad(set_to_none=True)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()


def _storage_bytes(tensors: Sequence[Tensor]) -> int:
    """Tied parameters are one."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())
