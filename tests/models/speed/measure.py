"""Time training steps of one model, compiled in several ways, side by side in one process."""

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

import aotkit
from aotkit.benchmark.timing import Spread, Step, interleave, spread
from tests.models.zoo import Training, set_seed

BASE = "torch.compile"
ROUNDS = 5  # of looking at what runs on the GPU
MOST_DYNAMO_VARIANTS = 64  # of one function, all variants together: above 8, torch.compile leaves the rest to eager


class Options(TypedDict):
    """What `measure` is told for every model alike."""

    device: str
    dtype: torch.dtype
    seconds: float
    check: bool


@dataclass
class Row:
    """One way to train one model.

    Attributes:
        variant: "eager", "torch.compile", or a backend and a partitioner of aotkit's.
        first: seconds of the first step, which compiles, and checks if that was asked for.
        check: aotkit's verdict; "" where there is none.
        wall: seconds of a step, one number a round.
        busy: seconds in which the GPU ran kernels, one number a round; empty on a CPU.
        peak: bytes, the most that a step had allocated; None on a CPU.
        error: why it could not be measured.
    """

    variant: str
    first: float = 0.0
    check: str = ""
    wall: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    peak: int | None = None
    error: str = ""


@torch._dynamo.config.patch(recompile_limit=MOST_DYNAMO_VARIANTS)
def measure(
    build: Callable[[], Training],
    variants: Sequence[str],
    *,
    device: str,
    dtype: torch.dtype,
    seconds: float,
    check: bool,
    seed: int = 0,
    before_timing: Callable[[], None] = lambda: None,
) -> list[Row]:
    """All variants, which share the model's parameters.

    Args:
        variants: "eager", "torch.compile", or "inductor/min_cut", "fuser+inductor/min_cut" (a list) and the like.
        seconds: how long to time the steps of all of them.
        check: have aotkit check its own.
        seed: of weights and inputs.
        before_timing: called when all are compiled.

    Raises:
        UnknownNameError: a variant names none of aotkit's backends or partitioners.
    """
    training = _placed(build, device, dtype, seed)
    calls = {variant: _compiled(training.model, variant, check) for variant in variants}
    rows, steps = [], dict[str, Step]()
    for variant, call in calls.items():
        rows.append(row := Row(variant))
        torch._dynamo.pgo.reset_code_state()  # else sizes that differed in one are open in the next from the start
        step = Step(training.model.zero_grad, _stepping(training, call), None)
        try:
            begun = time.perf_counter()
            _run(step)
            row.first = time.perf_counter() - begun
            row.check = _verdict(call, training) if check else ""
            for _ in range(2):  # the first run of compiled code differs from later ones
                row.peak = _peak(step)
        except Exception as e:
            row.error = f"{type(e).__name__}: {e}"
        else:
            steps[variant] = step
    before_timing()
    times, failed = interleave(steps, seconds, cuda=device == "cuda")
    for row in rows:
        if row.variant in failed:
            row.error = f"{type(failed[row.variant]).__name__}: {failed[row.variant]}"
        elif row.variant in times:
            row.wall = times[row.variant]["forward"].wall
    if device == "cuda":
        alive = [row for row in rows if row.wall]
        for _ in range(ROUNDS):
            for row in alive:
                row.busy.append(_busy(steps[row.variant]))
    return rows


def _placed(build: Callable[[], Training], device: str, dtype: torch.dtype, seed: int) -> Training:
    set_seed(seed)
    training = build()
    training.model.to(device, dtype).train()

    def place(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.to(device, dtype if value.is_floating_point() else None)

    training.args = tuple(map(place, training.args))
    training.kwargs = {name: place(value) for name, value in training.kwargs.items()}
    return training


def _compiled(model: nn.Module, variant: str, check: bool) -> Callable[..., Any]:
    if variant == "eager":
        return model
    if variant == BASE:
        return torch.compile(model)  # type: ignore[no-any-return]
    backend, _, partition = variant.partition("/")
    several = backend.split("+") if "+" in backend else backend
    return aotkit.compile(model, backend=several, partition=partition or "min_cut", check=check)


def _stepping(training: Training, call: Callable[..., Any]) -> Callable[[], None]:
    def step() -> None:
        training.loss(call(*training.args, **training.kwargs)).backward()

    return step


def _run(step: Step) -> None:
    step.prepare()
    step.forward()
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _verdict(call: Any, training: Training) -> str:
    if not isinstance(call, nn.Module) or not hasattr(call, "report"):
        return ""
    report = call.report(*training.args, **training.kwargs)
    if not report.passed:
        return "not passed"
    undecided = sum(comparison.undecided is not None for comparison in report.comparisons)
    return f"passed, {undecided} undecided" if undecided else "passed"


def _peak(step: Step) -> int | None:
    if not torch.cuda.is_available():
        _run(step)
        return None
    step.prepare()
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    _run(step)
    return torch.cuda.max_memory_allocated()


def _busy(step: Step) -> float:
    """Seconds in which kernels ran: launching late does not count, nor do two at a time count twice."""
    step.prepare()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        step.forward()
        torch.cuda.synchronize()
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA  # not the same object
    )
    total, until = 0.0, 0.0
    for start, end in spans:
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total * 1e-6


def table(rows: Iterable[tuple[str, Row]]) -> str:
    """A Markdown table; ratios are to torch.compile, below 1 is better."""
    lines = [
        "| model | | GPU ms | ratio | wall ms | ratio | peak GiB | ratio | first step s | check |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    known = {(model, row.variant): row for model, row in rows}
    for (model, variant), row in known.items():
        base = known.get((model, BASE))
        if row.error:
            lines.append(f"| {model} | {variant} | | | | | | | | {row.error.splitlines()[0]} |")
            continue
        cells = [
            *_times(row.busy, base.busy if base else []),
            *_times(row.wall, base.wall if base else []),
            *_peaks(row.peak, base.peak if base else None),
        ]
        lines.append(f"| {model} | {variant} | {' | '.join(cells)} | {row.first:.1f} | {row.check} |")
    return "\n".join(lines)


def _times(own: Sequence[float], base: Sequence[float]) -> tuple[str, str]:
    if not own:
        return "", ""
    found: Spread = spread(own)
    ratio = f"{found.median / statistics.median(base):.3f}" if any(base) else ""
    return f"{found.median * 1e3:.2f} ±{found.half_width:.0%}", ratio


def _peaks(own: int | None, base: int | None) -> tuple[str, str]:
    if own is None:
        return "", ""
    return f"{own / 2**30:.2f}", f"{own / base:.2f}" if base else ""
