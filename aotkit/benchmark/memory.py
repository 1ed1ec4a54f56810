"""Peak memory and time of training steps: eager, torch.compile under its memory budgets, and partitions of ours.

All variants of a model share its parameters and run interleaved in this process.
"""

import gc
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from aotkit.benchmark import transformers_models as hf
from aotkit.benchmark.choice import family_and_limit, judged_if_possible
from aotkit.benchmark.evaluation import evaluate
from aotkit.benchmark.report import MIB, MeasuredReport, Outcome, cell, machine
from aotkit.benchmark.rivals import EAGER, TORCH_COMPILE, torch_compiled
from aotkit.benchmark.timing import Step, Tell, interleave, silent, spread
from aotkit.benchmark.transformers_models import Model
from aotkit.compiled import CompiledModule, function_of
from aotkit.compiler import compile
from aotkit.errors import TraceError
from aotkit.interfaces import Partitioner
from aotkit.launches import most_allocated
from aotkit.random import random_state
from aotkit.torch_private.aotautograd import memory_budget

TENTHS = tuple(n / 10 for n in range(10, 0, -1))
HUNDREDTHS = tuple(n / 100 for n in range(100, 0, -1))
EXPLANATION = (
    "peak: the most memory during one training step: parameters, buffers, inputs and gradients with all that lives in "
    "between. simulated: the same, reckoned from the two graphs, and how far that is off. step: median of forward and "
    "backward together, ± half the interquartile range. first step: with compilation. A number after a name is a "
    "budget: a fraction of what there would be without one. impossible: so are smaller ones, which are left out."
)
SMALL = {"layers": 2, "heads": 2, "width": 64, "batch": 2, "length": 128}
# On a GPU of real sizes; on a CPU the same in small.
MODELS: dict[str, dict[str, Callable[[], Model]]] = {
    "cuda": {"gpt2": partial(hf.with_values, hf.gpt2), "llama": partial(hf.with_values, hf.llama)},
    "cpu": {"gpt2": partial(hf.with_values, hf.gpt2, **SMALL), "llama": partial(hf.with_values, hf.llama, **SMALL)},
}


@dataclass
class Row(Outcome):
    """One variant of one model."""

    model: str
    variant: str
    peak_bytes: int | None = None  # the most during one training step
    simulated_bytes: int | None = None  # the same by `evaluation`, if its graphs are known
    seconds: list[float] = field(default_factory=list)  # of one step, one number a round; empty if it was not timed
    compile_seconds: float | None = None  # of the first step

    @property
    def family(self) -> str:
        """The name without the budget."""
        return family_and_limit(self.variant)[0]

    @property
    def budget(self) -> float:
        """Infinite without one."""
        return family_and_limit(self.variant)[1]

    @property
    def is_ours(self) -> bool:
        return self.family not in (EAGER, TORCH_COMPILE)

    @property
    def peak(self) -> int:
        """Of a row that has one."""
        assert self.peak_bytes is not None
        return self.peak_bytes

    @property
    def time(self) -> float:
        """The median of the seconds of a row that was timed."""
        return spread(self.seconds).median

    @property
    def error(self) -> float | None:
        """By what part of the measured peak the simulated one is higher."""
        return self.simulated_bytes / self.peak_bytes - 1 if self.simulated_bytes and self.peak_bytes else None


@dataclass
class MemoryReport(MeasuredReport[Row]):
    """All rows; those of one model were timed together."""

    heading = ("model", "variant", "peak MiB", "simulated", "off by", "step ms", "first step s")
    words = ("model", "variant")
    by = 1
    key = ("model", "variant")

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(row.model for row in self.rows))

    def measured(self, model: str) -> list[Row]:
        """The rows of a model that have both a peak and a time."""
        return [row for row in self.rows if row.model == model and row.peak_bytes and row.seconds]

    def dominating(self, row: Row) -> list[Row]:
        """The rows of ours whose peak and median time are both at most those of `row`."""
        ours = [other for other in self.measured(row.model) if other.is_ours]
        return [other for other in ours if other.peak <= row.peak and other.time <= row.time]

    @classmethod
    def row_of(cls, values: Mapping[str, Any]) -> Row:
        return Row(**{key: value for key, value in values.items() if key != "dominated_by"})

    def values_of(self, row: Row) -> dict[str, Any]:
        """With `dominated_by`: names of rows, for a point of torch.compile's."""
        is_point = row.family == TORCH_COMPILE and row in self.measured(row.model)
        names = [other.variant for other in self.dominating(row)] if is_point else None
        return {**super().values_of(row), "dominated_by": names}

    def _cells(self) -> Iterable[Sequence[str]]:
        for row in self.rows:
            if row.problem:
                yield row.model, row.variant, row.word
                continue
            yield (
                row.model,
                row.variant,
                cell(row.peak_bytes, ",.1f", MIB),
                cell(row.simulated_bytes, ",.1f", MIB),
                cell(row.error, "+.1%"),
                f"{row.time * 1e3:.2f} ±{spread(row.seconds).half_width:.0%}" if row.seconds else "",
                cell(row.compile_seconds, ".1f"),
            )

    def _notes(self) -> list[str]:
        verdicts = [line for model in self.models for line in self._verdicts(model)]
        problems = [f"{row.model}: {row.variant}: {row.problem}" for row in self.rows if row.problem]
        return [EXPLANATION, *verdicts, *problems]

    def _verdicts(self, model: str) -> list[str]:
        """Which of ours need neither more time nor more memory than each point of torch.compile's."""
        rows = self.measured(model)
        theirs = [row for row in rows if row.family == TORCH_COMPILE]
        ours = [row for row in rows if row.is_ours]
        if not theirs or not ours:
            return []
        by = {row.variant: ", ".join(other.variant for other in self.dominating(row)) for row in theirs}
        low, our_low = (min(rows, key=lambda row: row.peak) for rows in (theirs, ours))
        return [
            *(f"{model}: no more memory and no more time than {name}: {names or 'none'}" for name, names in by.items()),
            f"{model}: the lowest peaks: {our_low.variant} {cell(our_low.peak, ',.1f', MIB)} MiB, {low.variant} "
            f"{cell(low.peak, ',.1f', MIB)} MiB ({our_low.peak / low.peak - 1:+.1%})",
        ]


@dataclass(frozen=True)
class Variant:
    """One way to train a model."""

    compile: Callable[[nn.Module], Callable[..., Tensor]]  # from the module to what is called in its place
    setting: Callable[[], AbstractContextManager[Any]] = nullcontext  # in force while that compiles: in the first step


def variants() -> dict[str, Variant]:
    """Name of a row -> variant: eager, torch.compile under its memory budgets, Inductor with partitioners of ours.

    A number is a budget: a fraction of what there would be without one. Peaks are there in steps of 0.01.
    """
    from aotkit.partitioners.nx_min_cut import budget, peak

    ours: dict[str, str | Partitioner] = {"min_cut": "min_cut", "nx_min_cut": "nx_min_cut"}
    ours |= {f"nx_min_cut budget {f}": budget(f) for f in TENTHS}
    ours |= {f"nx_min_cut peak {f}": peak(f) for f in HUNDREDTHS}
    return {
        EAGER: Variant(lambda module: module),
        **{f"{TORCH_COMPILE} {f}": Variant(_torch_compile, partial(memory_budget, f)) for f in (*TENTHS, 0.0)},
        **{name: Variant(partial(_aotkit, partition=partition)) for name, partition in ours.items()},
    }


def _torch_compile(module: nn.Module) -> Callable[..., Tensor]:
    return torch_compiled(lambda *inputs: module(*inputs))


def _aotkit(module: nn.Module, partition: str | Partitioner) -> Callable[..., Tensor]:
    return compile(module, backend="inductor", partition=partition, check=False)


def memory(
    models: Iterable[str], rows: Mapping[str, Variant], *, device: str = "cpu", seconds: float, progress: Tell = silent
) -> MemoryReport:
    """Measure the peak of one step of each variant, alone, then time the steps of all of them.

    Args:
        models: keys of `MODELS[device]`.
        seconds: how long to time each model; at least seven rounds are played.

    A KeyboardInterrupt while a row is compiled leaves out the rest of its model's; those before it are timed. One while
    they are timed leaves out the times.

    Raises:
        ImportError: transformers is missing or too old.
    """
    report = MemoryReport(machine(device), torch.__version__, device)
    for model in models:
        progress(f"{model}: building")
        subject = _Subject(model, device)
        with hf.single_sequences():
            report.rows += subject.rows(rows, seconds, progress)
    return report


def build(name: str, device: str) -> Model:
    """A model of `MODELS[device]` in training mode; the same values every time.

    On a GPU it is in bfloat16. On a CPU, matrix products of that take scratch memory, so it is in float32.

    Raises:
        ImportError: transformers is missing or too old for it.
    """
    with random_state(), torch.device(device):
        torch.manual_seed(0)
        module, inputs = MODELS[device][name]()
        return module.to(torch.bfloat16 if device == "cuda" else torch.float32).train(), inputs


class _Subject:
    """A model with its inputs, which all variants share."""

    def __init__(self, name: str, device: str) -> None:
        self._name = name
        self._device = torch.device(device)
        self._module, self._inputs = build(name, device)
        storages = [t.untyped_storage() for t in (*self._module.parameters(), *self._module.buffers(), *self._inputs)]
        self._alive = sum({s.data_ptr(): s.nbytes() for s in storages}.values())  # tied parameters are one

    def rows(self, variants: Mapping[str, Variant], seconds: float, tell: Tell) -> list[Row]:
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
            if self._device.type == "cuda":
                torch.cuda.synchronize()
        row.compile_seconds = time.perf_counter() - start
        row.simulated_bytes = self._simulated(call)
        for _ in range(2):  # the first run of compiled code differs from later ones
            self._prepare()
            gc.collect()
            row.peak_bytes = self._alive + most_allocated(step, self._device)
        return Step(self._prepare, step)

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
