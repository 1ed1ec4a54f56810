"""What `aotkit bench overhead` found, as a table and as JSON."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aotkit.benchmark.report import Outcome, Report
from aotkit.benchmark.rivals import EAGER, TORCH_COMPILE
from aotkit.benchmark.timing import Samples, Spread, spread

CLOCKS = ("cpu", "wall")
ONE_SHAPE = "one shape"
BASES = (TORCH_COMPILE, EAGER, ONE_SHAPE)
EXPLANATION = (
    "Medians of the time of one call, in microseconds, ± half the interquartile range. / torch.compile, / eager: the "
    "median of the ratios of {clock} round by round, ± half their interquartile range; below 1 is faster. / one shape: "
    "the same, to the variant's own time with a single shape. forward: the call alone, its graph dropped at once. "
    "backward: result.backward(gradient) on graphs that were built before, and setting the gradients to None."
)


@dataclass
class Row(Outcome):
    """One variant in one phase of one workload."""

    workload: str
    phase: str
    shapes: int  # signatures that the calls cycle through
    variant: str
    calls: int  # in one sample
    samples: Samples | None = None  # seconds of one call, one number a round; None if it was not timed

    @property
    def name(self) -> str:
        return self.workload if self.shapes == 1 else f"{self.workload}, {self.shapes} shapes"

    def microseconds(self, clock: str) -> Spread | None:
        return spread([t * 1e6 for t in getattr(self.samples, clock)]) if self.samples else None


@dataclass
class OverheadReport(Report):
    """All rows; those of one workload, phase and number of shapes were timed together."""

    heading = ("workload", "phase", "variant", "CPU us", "wall us", *(f"/ {base}" for base in BASES))
    words = ("workload", "phase", "variant")
    by = 2

    machine: Mapping[str, Any]  # of `report.machine`
    torch: str
    threads: int
    device: str  # on "cpu" ratios in the table are of CPU time, on "cuda" of wall time
    rows: list[Row] = field(default_factory=list)

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
        ratios = "median of the round by round ratios of own time to the base's"
        return {**super().json(), "ratios": ratios, "spread": "half the interquartile range"}

    def values_of(self, row: Row) -> dict[str, Any]:
        plain = ("workload", "phase", "shapes", "variant", "problem", "calls")
        return {
            **{key: getattr(row, key) for key in plain},
            "rounds": len(row.samples.wall) if row.samples else 0,
            **{f"{clock}_us": _as_json(row.microseconds(clock)) for clock in CLOCKS},
            "ratios": {base: {clock: _as_json(self.ratio(row, base, clock)) for clock in CLOCKS} for base in BASES},
        }

    def title(self) -> str:
        processor = self.machine["gpu"] or f"{self.machine['processor']} ({self.machine['cores']} cores)"
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        rounds = statistics.median_low([len(row.samples.wall) for row in self.rows if row.samples] or [0])
        return f"torch {self.torch}, {processor}, {threads}, {rounds} rounds"

    def _notes(self) -> list[str]:
        explanation = EXPLANATION.format(clock="wall time" if self.device == "cuda" else "CPU time")
        problems = [f"{row.name}: {row.variant}: {row.problem}" for row in self.rows if row.problem]
        return [explanation, *dict.fromkeys(problems)]  # each once, though every phase has it

    def _table(self) -> list[Sequence[str]]:
        """Without columns that are empty."""
        table = super()._table()
        used = [i for i in range(len(self.heading)) if any(cells[i] for cells in table[1:])]
        return [[cells[i] for i in used] for cells in table]

    def _cells(self) -> Iterable[Sequence[str]]:
        cuda = self.device == "cuda"
        for row in self.rows:
            cpu, wall = (row.microseconds(clock) for clock in CLOCKS)
            # The thread's CPU time says nothing about a GPU's: torch runs backward in another thread, and waiting
            # counts.
            times = ["" if cuda or not cpu else cpu.text(), wall.text() if wall else "failed"]
            ratios = [self.ratio(row, base, "wall" if cuda else "cpu") for base in BASES]
            texts = [f"{r.median:.2f} ±{(r.high - r.low) / 2:.2f}" if r else "" for r in ratios]
            yield (row.name, row.phase, row.variant, *times, *texts)


def _as_json(found: Spread | None) -> dict[str, float] | None:
    return None if found is None else {"median": found.median, "spread": (found.high - found.low) / 2}
