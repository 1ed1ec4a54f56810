"""What `aotkit.frontier` found: as a table, as Markdown, as JSON, and as a plot."""

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from aotkit.partitioners.rematerialization.devices import Device
from aotkit.text import aligned, bytes_name, markdown

HEADING = ("partition", "limit", "saved", "peak", "fused peak", "ms", "GFLOP again", "best in")
RIGHT = (False, True, True, True, True, True, True, False)
EXPLANATION = (
    "Memory without inputs and parameters. limit: of what the family takes without one. saved: from forward to "
    "backward, outputs apart. peak: most that is alive at a time, operator by operator, outputs and gradients "
    "included; fused: if all between matrix products and the like is one kernel. ms: estimated time of the fused "
    "kernels of forward and backward. GFLOP again: matrix products, convolutions and attention that backward repeats. "
    "best in: no row has less of this memory in the same time, nor takes less time with the same. impossible: so are "
    "smaller limits, which are left out."
)
WIDTH = 118


@dataclass(frozen=True)
class Point:
    """One partition.

    Attributes:
        partition: the partitioner's name, or that of a family of partitioners with a limit each.
        limit: a fraction of what the family takes without one; None: it has none.
        saved_bytes, peak_bytes, fused_peak_bytes, seconds, repeated_flops: see `benchmark.evaluation.Evaluation`.
        problem: why there is no such partition; the numbers then mean nothing.
        impossible: whether that is because no partition keeps within the limit.
    """

    partition: str
    limit: float | None = None
    saved_bytes: int = 0
    peak_bytes: int = 0
    fused_peak_bytes: int = 0
    seconds: float = 0.0
    repeated_flops: int = 0
    problem: str | None = None
    impossible: bool = False

    @property
    def label(self) -> str:
        return self.partition if self.limit is None else f"{self.partition} {self.limit}"


@dataclass
class Frontier:
    """Partitions of one joint graph, in memory and estimated time.

    Attributes:
        name: the function's.
        backend: whose decompositions the joint graph has.
        device: what time is estimated for.
    """

    name: str
    backend: str
    device: Device
    points: list[Point] = field(default_factory=list, repr=False)

    def best(self, memory: str) -> list[Point]:
        """The points on the Pareto frontier: for less of this memory they take more time than any other, or as much.

        Args:
            memory: "saved", "peak" or "fused_peak".
        """
        places = {p: (getattr(p, f"{memory}_bytes"), round(p.seconds, 9)) for p in self.points if p.problem is None}
        return [p for p, place in places.items() if not any(_dominates(other, place) for other in places.values())]

    def json(self) -> dict[str, Any]:
        """Everything that was found, of types that the json module takes: bytes, seconds, FLOP."""
        best = {memory: self.best(memory) for memory in ("saved", "peak")}
        return {
            "schema": 1,
            "torch": torch.__version__,
            "name": self.name,
            "backend": self.backend,
            "device": asdict(self.device),
            "points": [{**asdict(p), "best": [m for m, points in best.items() if p in points]} for p in self.points],
        }

    def plot(self, axes: Any = None) -> Any:
        """Draw saved bytes and peak against estimated time, with a line for each family.

        Args:
            axes: two of matplotlib's, to draw on; None: those of a new figure.

        Returns:
            The two axes; `[0].figure` is the figure.

        Raises:
            UnavailableError: matplotlib is not installed.
        """
        from aotkit.benchmark.frontier_plot import plot

        return plot(self, axes)

    def __str__(self) -> str:
        lines = [self._title(), *aligned(self._table(), RIGHT), ""]
        return "\n".join([*lines, *(textwrap.fill(note, WIDTH, subsequent_indent="  ") for note in self._notes())])

    def _repr_markdown_(self) -> str:
        return "\n\n".join([f"**{self._title()}**", markdown(self._table(), RIGHT), *self._notes()])

    def _title(self) -> str:
        speed = f"{self.device.bandwidth / 1e9:,.0f} GB/s and {self.device.flops / 1e9:,.0f} GFLOP/s"
        return f"{self.name}: operators of backend {self.backend}, time estimated for {speed}"

    def _notes(self) -> list[str]:
        return [EXPLANATION, *(f"{p.label}: {p.problem}" for p in self.points if p.problem)]

    def _table(self) -> list[Sequence[str]]:
        saved, peak = self.best("saved"), self.best("peak")
        rows: list[Sequence[str]] = [HEADING]
        for p in self.points:
            names = [name for name, points in (("saved", saved), ("peak", peak)) if p in points]
            rows.append(_cells(p, ", ".join(names)))
        return rows


def _dominates(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return a[0] <= b[0] and a[1] <= b[1] and a != b


def _cells(point: Point, best: str) -> tuple[str, ...]:
    limit = "" if point.limit is None else str(point.limit)
    if point.problem is not None:
        return (point.partition, limit, "impossible" if point.impossible else "failed", *[""] * (len(HEADING) - 3))
    return (
        point.partition,
        limit,
        *map(bytes_name, (point.saved_bytes, point.peak_bytes, point.fused_peak_bytes)),
        f"{point.seconds * 1e3:,.3f}",
        f"{point.repeated_flops / 1e9:,.2f}" if point.repeated_flops else "",
        best,
    )
