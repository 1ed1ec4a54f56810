"""What first steps cost, as a table and as JSON."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aotkit.benchmark.report import MeasuredReport, Outcome, cell
from aotkit.benchmark.start.process import EAGER, TORCH_COMPILE

EXPLANATION = (
    "cold: seconds of the first training step, with what it imports, in a fresh process with empty caches; medians. "
    "warm: in a second process. of theirs: a share of torch.compile's. pays after: steps after which the cold start "
    "has paid, next to eager and to torch.compile."
)


@dataclass
class Row(Outcome):
    """One way to compile one workload; each entry of `cold` and `warm` is what a process printed."""

    workload: str
    way: str
    cold: list[dict[str, Any]] = field(default_factory=list)
    warm: list[dict[str, Any]] = field(default_factory=list)

    def seconds(self, kind: str) -> float | None:
        """The median of the first steps, "cold" or "warm"."""
        found = [run["first"] for run in getattr(self, kind)]
        return statistics.median(found) if found else None

    @property
    def step(self) -> float | None:
        """The median of later steps, those of warm processes where there are any."""
        found = [run["step"] for run in self.warm or self.cold]
        return statistics.median(found) if found else None

    def phases(self) -> dict[str, float]:
        """Seconds of each part of a cold start, medians."""
        names = dict.fromkeys(name for run in self.cold for name in run["phases"])
        return {name: statistics.median(run["phases"].get(name, 0.0) for run in self.cold) for name in names}


def steps_until_paid(row: Row, other: Row | None) -> float | None:
    """The number of steps after which one way has taken no more time than another; infinite: it never will."""
    if other is None or row.step is None or other.step is None:
        return None
    more = (row.seconds("cold") or 0.0) - (other.seconds("cold") or 0.0)
    if more <= 0:
        return 0.0 if row.step <= other.step else None
    return math.ceil(more / (other.step - row.step)) if row.step < other.step else math.inf


@dataclass
class StartReport(MeasuredReport[Row]):
    """All rows."""

    heading = (
        "workload", "way", "cold s", "of theirs", "warm s", "of theirs", "step ms", "pays after: eager",
        "torch.compile",
    )  # fmt: skip
    words = ("workload", "way")
    by = 1
    key = ("workload", "way")

    @classmethod
    def row_of(cls, values: Mapping[str, Any]) -> Row:
        return Row(**values)

    def _row(self, workload: str, way: str) -> Row | None:
        return next((row for row in self.rows if (row.workload, row.way) == (workload, way)), None)

    def _cells(self) -> Iterable[Sequence[str]]:
        for row in self.rows:
            if row.problem:
                yield row.workload, row.way, row.word
                continue
            eager, theirs = (self._row(row.workload, way) for way in (EAGER, TORCH_COMPILE))
            times = []
            for kind in ("cold", "warm"):
                own, other = row.seconds(kind), theirs.seconds(kind) if theirs else None
                share = own / other if own and other and row.way not in (EAGER, TORCH_COMPILE) else None
                times += [cell(own, ".2f"), cell(share, ".2f")]
            paid = [_steps(steps_until_paid(row, other)) if other is not row else "" for other in (eager, theirs)]
            yield row.workload, row.way, *times, cell(row.step, ".2f", 1e-3), *(["", ""] if row.way == EAGER else paid)

    def _notes(self) -> list[str]:
        phases = {f"{row.workload}, {row.way}": row.phases() for row in self.rows}
        parts = [
            f"{name}, cold: {', '.join(f'{part} {seconds:.2f} s' for part, seconds in found.items())}"
            for name, found in phases.items()
            if found
        ]
        problems = [f"{row.workload}: {row.way}: {row.problem}" for row in self.rows if row.problem]
        return [EXPLANATION, *parts, *problems]


def _steps(number: float | None) -> str:
    if number is None:
        return ""
    return "never" if math.isinf(number) else f"{number:,.0f}"
