"""What `python -m aotkit bench patterns` found, as a table and as JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from aotkit.benchmark.measured_report import MeasuredReport
from aotkit.benchmark.pattern_cells import Row, Summit
from aotkit.benchmark.patterns_summary import summary
from aotkit.benchmark.timing import Spread
from aotkit.text import aligned

CLOCKS = ("kernel", "wall")
HEADING = (
    "pattern", "pass", "type", "shape", "eager us", "torch.compile", "aotkit", "by", "torch.compile/", "eager/",
    "wall us: eager", "torch.compile", "aotkit", "MiB: eager", "aotkit", "roofline",
)  # fmt: skip
RIGHT = (False, False, False, False, True, True, True, False, *[True] * 8)  # aligned right
EXPLANATION = (
    "Medians: {clock}; wall time of a call until it has finished. torch.compile, aotkit: the fastest of each, by the "
    "first; by: which of aotkit's. torch.compile/, eager/: their time divided by aotkit's. MiB: peak of inputs, "
    "outputs, gradients and all in between. roofline: the time of a copy of as many bytes as have to be read and "
    "written, in percent of aotkit's. FW: without gradients; FW+BW: forward and backward together."
)
CLOCK_NAMES = {"cuda": "GPU time between events, with a cold L2 cache", "cpu": "wall time"}


@dataclass
class PatternsReport(MeasuredReport[Row]):
    """All rows; those of one cell were timed together."""

    @property
    def cells(self) -> list[Summit]:
        found: dict[tuple[str, ...], list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.cell, []).append(row)
        return [Summit(rows) for rows in found.values()]

    @classmethod
    def row_of(cls, values: Mapping[str, Any]) -> Row:
        return Row(**{**values, **{clock: values[clock] and Spread(**values[clock]) for clock in CLOCKS}})

    def values_of(self, row: Row) -> dict[str, Any]:
        return asdict(row)

    def __str__(self) -> str:
        table = aligned([HEADING, *map(_cells, self.cells)], RIGHT)
        problems = [f"{' '.join(row.cell)}: {row.variant}: {row.problem}" for row in self.rows if row.problem]
        return self.text(table, [EXPLANATION.format(clock=CLOCK_NAMES[self.device]), *summary(self.cells), *problems])


def _cells(cell: Summit) -> tuple[str, ...]:
    rows = (cell.eager, cell.torch, cell.ours)
    kernel, wall = ([f"{row.seconds(clock) * 1e6:.1f}" if row else "" for row in rows] for clock in CLOCKS)
    return (
        *cell.first.cell,
        *kernel,
        cell.ours.variant if cell.ours else "failed" if any(row.problem for row in cell.rows) else "",
        *(_two_digits(cell.ratio(base)) for base in ("torch", "eager")),
        *wall,
        *(f"{row.peak_bytes / 2**20:.1f}" if row and row.peak_bytes else "" for row in (cell.eager, cell.ours)),
        "" if cell.roofline is None else f"{cell.roofline:.0%}",
    )


def _two_digits(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
