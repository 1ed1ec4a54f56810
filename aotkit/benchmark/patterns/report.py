"""What `aotkit bench patterns` found, as a table, in a few numbers, and as JSON."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import geometric_mean
from typing import Any

from aotkit.benchmark.patterns.cells import FORWARD, PHASES, STEP, Row, Summit, sizes_of
from aotkit.benchmark.report import MIB, MeasuredReport, cell
from aotkit.benchmark.timing import Spread

CLOCKS = ("kernel", "wall")
CLOCK_NAMES = {"cuda": "GPU time between events, with a cold L2 cache", "cpu": "wall time"}
EXPLANATION = (
    "Medians: {clock}; wall time of a call until it has finished. torch.compile, aotkit: the fastest of each, by the "
    "first; by: which of aotkit's. torch.compile/, eager/: their time divided by aotkit's. MiB: peak of inputs, "
    "outputs, gradients and all in between. roofline: the time of a copy of as many bytes as have to be read and "
    "written, in percent of aotkit's. FW: without gradients; FW+BW: forward and backward together."
)
# Geometric means over the plots of xFormers' documentation: NVFuser against eager, on a V100.
PUBLISHED = {FORWARD: 2.62, STEP: 1.46}
AT_AN_END = 2  # shapes that count as the largest, and as the smallest


@dataclass
class PatternsReport(MeasuredReport[Row]):
    """All rows; those of one cell were timed together."""

    heading = (
        "pattern", "pass", "type", "shape", "eager us", "torch.compile", "aotkit", "by", "torch.compile/", "eager/",
        "wall us: eager", "torch.compile", "aotkit", "MiB: eager", "aotkit", "roofline",
    )  # fmt: skip
    words = ("pattern", "pass", "type", "shape", "by")
    key = ("cell", "variant")

    @property
    def cells(self) -> list[Summit]:
        found: dict[tuple[str, ...], list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.cell, []).append(row)
        return [Summit(rows) for rows in found.values()]

    @classmethod
    def row_of(cls, values: Mapping[str, Any]) -> Row:
        return Row(**{**values, **{clock: values[clock] and Spread(**values[clock]) for clock in CLOCKS}})

    def _notes(self) -> list[str]:
        problems = [f"{' '.join(row.cell)}: {row.variant}: {row.problem}" for row in self.rows if row.problem]
        return [EXPLANATION.format(clock=CLOCK_NAMES[self.device]), *summary(self.cells), *problems]

    def _cells(self) -> Iterable[Sequence[str]]:
        for summit in self.cells:
            eager, ours = summit.eager, summit.ours
            rows = eager, summit.torch, ours
            kernel, wall = ([f"{row.seconds(clock) * 1e6:.1f}" if row else "" for row in rows] for clock in CLOCKS)
            yield (
                *summit.first.cell,
                *kernel,
                ours.variant if ours else "failed" if any(row.problem for row in summit.rows) else "",
                *(cell(summit.ratio(base), ".2f") for base in ("torch", "eager")),
                *wall,
                *(f"{row.peak_bytes / MIB:.1f}" if row and row.peak_bytes else "" for row in (eager, ours)),
                cell(summit.roofline, ".0%"),
            )


def summary(cells: Sequence[Summit]) -> list[str]:
    """Lines of text; what was not measured has none."""
    grid, held_out = ([cell for cell in cells if cell.first.held_out == which] for which in (False, True))
    sizes = sizes_of(grid)
    ends = partial(_ends, small=sizes[:AT_AN_END], large=sizes[-AT_AN_END:])
    parts = (_speed, grid), (_held_out, held_out), (_published, grid), (_memory, cells), (ends, grid)
    return [
        line
        for part, among in parts
        for phase in PHASES
        for line in part(phase, [cell for cell in among if cell.first.phase == phase])
    ]


def _speed(phase: str, cells: Sequence[Summit]) -> Iterator[str]:
    yield from _ahead(phase, "with dropout", _dropping(cells))
    yield from _ahead(phase, "all patterns", cells)


def _held_out(phase: str, cells: Sequence[Summit]) -> Iterator[str]:
    yield from _ahead(phase, "held-out patterns", cells)


def _ahead(phase: str, what: str, cells: Sequence[Summit]) -> Iterator[str]:
    if ratios := _numbers(cells, lambda cell: cell.ratio("torch")):
        worst, slower = min(ratios, key=ratios.__getitem__), sum(ratio < 1 for ratio in ratios.values())
        yield (
            f"{phase}, {what}: torch.compile takes {_mean(ratios):.2f} times aotkit's time in the geometric mean "
            f"of {len(ratios)} cells; less in {slower}; worst: {ratios[worst]:.2f}, {worst}"
        )


def _published(phase: str, cells: Sequence[Summit]) -> Iterator[str]:
    if ratios := _numbers(_dropping(cells), lambda cell: cell.ratio("eager")):
        yield (
            f"{phase}, with dropout: eager takes {_mean(ratios):.2f} times aotkit's time in the geometric mean, "
            f"from {min(ratios.values()):.2f} to {max(ratios.values()):.2f}; xFormers' plots (NVFuser, V100): "
            f"{PUBLISHED[phase]}"
        )


def _memory(phase: str, cells: Sequence[Summit]) -> Iterator[str]:
    if ratios := _numbers(cells, lambda cell: cell.memory):
        worst = max(ratios, key=ratios.__getitem__)
        yield f"{phase}: peak memory is {_mean(ratios):.2f} of eager's; at most {ratios[worst]:.2f}: {worst}"


def _ends(phase: str, cells: Sequence[Summit], small: Sequence[str], large: Sequence[str]) -> Iterator[str]:
    if shares := _numbers([c for c in cells if c.first.size in large], lambda cell: cell.roofline):
        worst = min(shares, key=shares.__getitem__)
        yield (
            f"{phase}, largest shapes ({', '.join(large)}): {_mean(shares):.0%} of the roofline; at least "
            f"{shares[worst]:.0%}: {worst}"
        )
    near = [cell for cell in cells if cell.first.size in small]
    for base, name in (("eager", "eager"), ("torch", "torch.compile")):
        if walls := _numbers(near, partial(Summit.ratio, base=base, clock="wall")):
            yield (
                f"{phase}, smallest shapes ({', '.join(small)}): {name} takes {_mean(walls):.2f} times "
                "aotkit's wall time"
            )


def _dropping(cells: Iterable[Summit]) -> list[Summit]:
    return [cell for cell in cells if cell.first.drops]


def _numbers(cells: Iterable[Summit], value: Callable[[Summit], float | None]) -> dict[str, float]:
    """Name of a cell -> its number, if it has one."""
    return {" ".join(cell.first.cell): found for cell in cells if (found := value(cell)) is not None}


def _mean(numbers: Mapping[str, float]) -> float:
    return geometric_mean(numbers.values())
