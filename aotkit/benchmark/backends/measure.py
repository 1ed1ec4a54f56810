"""Workloads x variants -> times, memory, what is declined. All variants of a workload take turns in this process."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from aotkit.benchmark.backends.report import AUTOTUNE, FORWARD, STEP, BackendsReport, Row
from aotkit.benchmark.backends.workloads import build
from aotkit.benchmark.report import machine
from aotkit.benchmark.rivals import EAGER, TORCH_COMPILE, torch_compiled
from aotkit.benchmark.timing import Tell, silent
from aotkit.inspection import Graphs
from aotkit.registry import backend_status
from aotkit.tuning import Candidate, Unfit, Workload, graphs_of, made, peak, race, sampler, steps_a_sample, tuned

NOT_TIMED = ("print",)  # it prints graphs
PHASES = (FORWARD, STEP)


@dataclass(frozen=True)
class Subject:
    """A workload, and how long to look for the best way to run it: seconds."""

    workload: Workload
    budget: float


# From a subject to what is called in its place; the row takes what else is known.
SetUp = Callable[[Subject, Row], Callable[..., Any]]


def variants() -> dict[str, SetUp]:
    """Name of a row -> how it is made. Backends that cannot run here are not among them."""
    here = [name for name, reason in backend_status().items() if reason is None and name not in NOT_TIMED]
    return {
        EAGER: lambda subject, row: subject.workload.fn,
        TORCH_COMPILE: _torch_compile,
        **{name: partial(_backend, name) for name in here},
        AUTOTUNE: _autotune,
    }


def measure(
    names: Iterable[str],
    rivals: Mapping[str, SetUp],
    *,
    device: str = "cpu",
    seconds: float,
    budget: float,
    progress: Tell = silent,
) -> BackendsReport:
    """Time the workloads of these names; each backend is compared with eager first.

    Args:
        seconds: how long to time each, after compiling; at least seven rounds are played.
        budget: seconds in which autotune looks for the best way.

    Raises:
        ImportError: transformers is missing.
    """
    report = BackendsReport(machine(device), torch.__version__, device)
    cases = {name: build(name, device) for name in names}  # what is missing is found out before minutes of work
    for name, (fn, args) in cases.items():
        torch.compiler.reset()  # what Dynamo has compiled for one workload must not slow the next one's guards
        report.rows += _rows(name, Subject(Workload(fn, args, {}), budget), rivals, seconds, progress)
    return report


def _rows(name: str, subject: Subject, rivals: Mapping[str, SetUp], seconds: float, tell: Tell) -> list[Row]:
    rows: list[Row] = []
    calls: dict[int, Callable[..., Any]] = {}
    for variant, set_up in rivals.items():
        tell(f"{name}: {variant} ({len(rows) + 1} of {len(rivals)})")
        row = Row(name, variant)
        rows.append(row)
        start = time.perf_counter()
        try:
            subject.workload.prepare()
            call = set_up(subject, row)
            subject.workload.call(call)
            row.first_call = time.perf_counter() - start
            row.peak = peak(subject.workload, call)
            calls[len(rows) - 1] = call
        except Unfit as e:
            row.problem = str(e)
        except Exception as e:
            row.fail(e)
    tell(f"{name}: timing {len(calls)} variants for about {seconds:.0f} s")
    _time(rows, subject.workload, calls, seconds)
    return rows


def _time(rows: Sequence[Row], workload: Workload, calls: Mapping[int, Callable[..., Any]], seconds: float) -> None:
    count = steps_a_sample(workload)
    found: dict[int, dict[str, Sequence[float]]] = {i: {} for i in calls}
    for phase in PHASES:
        samples = {i: sampler(workload, call, count, backward=phase == STEP) for i, call in calls.items()}
        times = race(samples, seconds / len(PHASES), keep=None)
        for i, error in times.failed.items():
            rows[i].fail(error)
        for i in times.left:
            found[i][phase] = times.seconds[i]
    for i, own in found.items():
        rows[i].seconds = own if len(own) == len(PHASES) else {}


def _torch_compile(subject: Subject, row: Row) -> Callable[..., Any]:
    return torch_compiled(subject.workload.fn)


def _backend(name: str, subject: Subject, row: Row) -> Callable[..., Any]:
    workload = subject.workload
    compiled = made(Candidate({"backend": name}), workload, {})
    _tell_of_operations(row, graphs_of(compiled, workload))
    return compiled


def _autotune(subject: Subject, row: Row) -> Callable[..., Any]:
    workload = subject.workload
    recipe = tuned(workload.fn, workload.args, workload.kwargs, {}, budget=subject.budget)
    row.line = recipe.line
    call: Callable[..., Any] = recipe.apply()
    if recipe.candidate.options is not None:
        _tell_of_operations(row, graphs_of(call, workload))
    return call


def _tell_of_operations(row: Row, all_graphs: Sequence[Graphs]) -> None:
    """How many operations there are, and which of them run as they are, and why."""
    counts, reasons = Counter[str](), dict[str, str]()
    for graphs in all_graphs:
        for role, gm in (("forward", graphs.forward), ("backward", graphs.backward)):
            nodes = [] if gm is None else [node for node in gm.graph.nodes if node.op == "call_function"]
            row.operations += len(nodes)
            outside = graphs.regions[role].outside if role in graphs.regions else {}
            for node in nodes:
                if node.name in outside:
                    counts[str(node.target)] += 1
                    reasons[str(node.target)] = outside[node.name][0]
    row.declined = {operator: (count, reasons[operator]) for operator, count in counts.items()}
