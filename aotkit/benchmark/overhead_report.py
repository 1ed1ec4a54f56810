"""What `python -m aotkit bench overhead` found, as a table and as JSON."""

import os
import platform
import statistics
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from aotkit.benchmark.overhead_variants import EAGER, TORCH_COMPILE
from aotkit.benchmark.timing import Samples, Spread, spread
from aotkit.text import grouped

CLOCKS = ("cpu", "wall")
ONE_SHAPE = "one shape"
BASES = (TORCH_COMPILE, EAGER, ONE_SHAPE)
HEADING = ("workload", "phase", "variant", "CPU us", "wall us", *(f"/ {base}" for base in BASES))
RIGHT = (False, False, False, True, True, True, True, True)  # aligned right
EXPLANATION = (
    "Medians of the time of one call, in microseconds, ± half the interquartile range. / torch.compile, / eager: the "
    "median of the ratios of {clock} round by round, ± half their interquartile range; below 1 is faster. / one shape: "
    "the same, to the variant's own time with a single shape. forward: the call alone, its graph dropped at once. "
    "backward: result.backward(gradient) on graphs that were built before, and setting the gradients to None."
)
WIDTH = 118


@dataclass
class Row:
    """One variant in one phase of one workload.

    Attributes:
        shapes: how many signatures the calls cycle through.
        calls: in one sample.
        samples: seconds of one call, one number a round; None if it was not timed.
        problem: why it was not timed.
    """

    workload: str
    phase: str
    shapes: int
    variant: str
    calls: int
    samples: Samples | None = None
    problem: str | None = None

    def fail(self, problem: str | Exception) -> None:
        text = problem if isinstance(problem, str) else f"{type(problem).__name__}: {problem}"
        self.problem = " ".join(text.split())


@dataclass
class OverheadReport:
    """All rows; those of one workload, phase and number of shapes were timed together.

    Attributes:
        machine: processor, cores, GPU, system, version of Python.
        device: "cpu" or "cuda"; decides whether ratios in the table are of CPU time or of wall time.
    """

    machine: Mapping[str, Any]
    torch: str
    threads: int
    device: str
    rows: list[Row] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether every variant ran, and gave what eager gives."""
        return all(row.problem is None for row in self.rows)

    def ratio(self, row: Row, base: str, clock: str) -> Spread | None:
        """How much time `row` takes, with the base's as 1: median and quartiles of the ratios round by round."""
        variant, shapes = (row.variant, 1) if base == ONE_SHAPE else (base, row.shapes)
        wanted = (row.workload, row.phase, shapes, variant)
        other = next((r for r in self.rows if (r.workload, r.phase, r.shapes, r.variant) == wanted), None)
        if other is None or other is row or row.samples is None or other.samples is None:
            return None
        pairs = zip(getattr(row.samples, clock), getattr(other.samples, clock), strict=True)
        return spread([own / others for own, others in pairs])

    def json(self) -> dict[str, Any]:
        """Everything that was measured, of types that the json module takes; times in microseconds."""
        return {
            "schema": 1,
            "machine": dict(self.machine),
            "torch": self.torch,
            "threads": self.threads,
            "device": self.device,
            "ratios": "median of the round by round ratios of own time to the base's",
            "spread": "half the interquartile range",
            "rows": [self._row_json(row) for row in self.rows],
        }

    def _row_json(self, row: Row) -> dict[str, Any]:
        plain = ("workload", "phase", "shapes", "variant", "problem", "calls")
        entry: dict[str, Any] = {key: getattr(row, key) for key in plain}
        entry["rounds"] = len(row.samples.wall) if row.samples else 0
        for clock in CLOCKS:
            entry[f"{clock}_us"] = _as_json(_microseconds(row, clock))
        entry["ratios"] = {base: {clock: _as_json(self.ratio(row, base, clock)) for clock in CLOCKS} for base in BASES}
        return entry

    def __str__(self) -> str:
        table = [HEADING, *map(self._cells, self.rows)]
        used = [i for i in range(len(HEADING)) if any(cells[i] for cells in table[1:])]
        lines = [self._title()]
        lines += grouped([[cells[i] for i in used] for cells in table], [RIGHT[i] for i in used], by=2)
        notes = [EXPLANATION.format(clock="wall time" if self.device == "cuda" else "CPU time"), *self._problems()]
        return "\n".join([*lines, "", *(textwrap.fill(note, WIDTH, subsequent_indent="  ") for note in notes)])

    def _title(self) -> str:
        processor = self.machine["gpu"] or f"{self.machine['processor']} ({self.machine['cores']} cores)"
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        rounds = statistics.median_low([len(row.samples.wall) for row in self.rows if row.samples] or [0])
        return f"torch {self.torch}, {processor}, {threads}, {rounds} rounds"

    def _problems(self) -> list[str]:
        """Each once, though every phase has it."""
        return list(dict.fromkeys(f"{_name(row)}: {row.variant}: {row.problem}" for row in self.rows if row.problem))

    def _cells(self, row: Row) -> tuple[str, ...]:
        cuda = self.device == "cuda"
        cpu, wall = (_microseconds(row, clock) for clock in CLOCKS)
        # The thread's CPU time says nothing about a GPU's: torch runs backward in another thread, and waiting counts.
        times = ["" if cuda else _with_spread(cpu), _with_spread(wall) if wall else "failed"]
        ratios = [self.ratio(row, base, "wall" if cuda else "cpu") for base in BASES]
        texts = [f"{r.median:.2f} ±{(r.high - r.low) / 2:.2f}" if r else "" for r in ratios]
        return (_name(row), row.phase, row.variant, *times, *texts)


def _name(row: Row) -> str:
    return row.workload if row.shapes == 1 else f"{row.workload}, {row.shapes} shapes"


def _microseconds(row: Row, clock: str) -> Spread | None:
    return spread([t * 1e6 for t in getattr(row.samples, clock)]) if row.samples else None


def _with_spread(time: Spread | None) -> str:
    """Three digits, and the spread in percent."""
    if time is None:
        return ""
    digits = f"{time.median:.0f}" if time.median >= 100 else f"{time.median:#.3g}".rstrip(".")
    return f"{digits} ±{time.half_width:.0%}"


def _as_json(found: Spread | None) -> dict[str, float] | None:
    return None if found is None else {"median": found.median, "spread": (found.high - found.low) / 2}


def machine(device: str) -> Mapping[str, Any]:
    """What the measurements ran on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
    }


def _processor() -> str:
    """The model's name, where the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
