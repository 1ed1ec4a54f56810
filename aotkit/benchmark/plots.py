"""Pictures of what benchmarks found, by matplotlib, which is needed here alone."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aotkit.benchmark.backends.report import BackendsReport
from aotkit.benchmark.memory import MemoryReport
from aotkit.benchmark.patterns.cells import PHASES, Summit, sizes_of
from aotkit.benchmark.patterns.report import PatternsReport
from aotkit.benchmark.rivals import EAGER
from aotkit.errors import UnavailableError

if TYPE_CHECKING:
    from aotkit.benchmark.frontier import Frontier

PANELS = {"saved": "saved for backward, MiB", "peak": "peak of memory, MiB"}


def plot_frontier(frontier: "Frontier", axes: Any = None) -> Any:
    """Two panels, memory to the right and time upwards; each family is one line, in the order of its limits."""
    if axes is None:
        try:
            from matplotlib import pyplot
        except ImportError as e:
            raise UnavailableError(
                f"Frontier.plot draws with matplotlib, which cannot be imported ({e}). "
                "Install it: pip install matplotlib"
            ) from e
        _, axes = pyplot.subplots(1, len(PANELS), figsize=(11, 4.5), sharey=True, layout="constrained")
    axes = list(axes)
    if len(axes) != len(PANELS):
        raise ValueError(f"a frontier is drawn on {len(PANELS)} axes, not {len(axes)}: plt.subplots(1, {len(PANELS)}).")
    possible = [point for point in frontier.points if point.problem is None]
    for ax, (memory, label) in zip(axes, PANELS.items(), strict=True):
        for family, points in groupby(possible, key=lambda point: point.partition):
            places = [(getattr(p, f"{memory}_bytes") / 2**20, p.seconds * 1e3) for p in points]
            is_line = len(places) > 1
            ax.plot(*zip(*places, strict=True), label=family, marker="." if is_line else "D", alpha=0.8)
        ax.set_xlabel(label)
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("estimated time of forward and backward, ms")
    axes[0].set_title(frontier.name, loc="left")
    axes[-1].legend()
    return axes


def plot_memory(report: MemoryReport, path: str | Path) -> None:
    """Write a picture with one axis pair for each model, and in it a curve for each family, from budget to budget.

    Args:
        path: its ending is the format: `.png`, `.svg`, `.pdf`.

    Raises:
        ImportError: matplotlib is missing.
        ValueError: there is nothing to draw, or matplotlib knows no such format.
    """
    from matplotlib.figure import Figure

    measured = {model: rows for model in report.models if (rows := report.measured(model))}
    if not measured:
        raise ValueError("No row has both a peak and a time, so there is nothing to draw.")
    families = list(dict.fromkeys(row.family for rows in measured.values() for row in rows))
    figure = Figure(figsize=(7.5 * len(measured), 5.5), layout="constrained")
    grid = figure.subplots(1, len(measured), squeeze=False)
    for axes, (model, rows) in zip(grid[0], measured.items(), strict=True):
        for family in dict.fromkeys(row.family for row in rows):
            own = sorted((row for row in rows if row.family == family), key=lambda row: row.budget)
            places = [(row.peak / 2**30, row.time * 1e3) for row in own]
            colour = f"C{families.index(family)}"
            axes.plot(*zip(*places, strict=True), marker="o", label=family, color=colour)
            for row, place in zip(own, places, strict=True):
                if isfinite(row.budget):
                    axes.annotate(f"{row.budget:g}", place, textcoords="offset points", xytext=(4, 4), fontsize=7)
        axes.set_title(model)
        axes.set_xlabel("peak memory, GiB")
        axes.set_ylabel("training step, ms")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(report.title())
    figure.savefig(path)


def plot_patterns(report: PatternsReport, path: str | Path) -> None:
    """Write a picture of speed-ups over eager: a row of panels for each pattern, a column for each pass and type.

    In a panel there is a group of bars for each shape. Arguments and errors are those of `plot_memory`.
    """
    import matplotlib
    from matplotlib.figure import Figure

    cells = [cell for cell in report.cells if cell.eager is not None]
    patterns = list(dict.fromkeys(cell.first.pattern for cell in cells))
    there = {(cell.first.phase, cell.first.dtype) for cell in cells}
    columns = sorted(there, key=lambda column: (PHASES.index(column[0]), column[1]))
    sizes = sizes_of(cells)
    variants = list(dict.fromkeys(row.variant for row in report.rows if row.variant != EAGER))
    if not cells or not variants:
        raise ValueError("No cell has times of eager and of something else, so there is nothing to draw.")
    with matplotlib.rc_context({"font.size": 7, "svg.fonttype": "none"}):  # text stays text: the file is small
        figure = Figure(figsize=(2.6 * len(columns) + 1, 1.1 * len(patterns) + 1), layout="constrained")
        grid = figure.subplots(len(patterns), len(columns), squeeze=False, sharex=True, sharey="row")
        for pattern, line in zip(patterns, grid, strict=True):
            line[0].set_ylabel(pattern.replace(" ", "\n", 1))
            for (phase, dtype), axes in zip(columns, line, strict=True):
                own = [c for c in cells if (c.first.pattern, c.first.phase, c.first.dtype) == (pattern, phase, dtype)]
                _bars(axes, {sizes.index(c.first.size): c for c in own}, variants)
        for (phase, dtype), axes in zip(columns, grid[0], strict=True):
            axes.set_title(f"{phase}, {dtype}")
        for axes in grid[-1]:
            axes.set_xticks([n + 0.4 for n in range(len(sizes))], sizes, rotation=40, ha="right")
        figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside upper left", ncols=len(variants))
        figure.suptitle(f"times faster than eager: {report.title()}", x=1.0, ha="right")
        figure.savefig(path)


def plot_backends(report: BackendsReport, path: str | Path) -> None:
    """Write a picture of how many times faster than eager a step is: a group of bars for each workload.

    Arguments and errors are those of `plot_memory`.
    """
    import matplotlib
    from matplotlib.figure import Figure

    workloads = [name for name in report.workloads if report.row(name, EAGER) is not None]
    variants = list(dict.fromkeys(row.variant for row in report.rows if row.variant != EAGER and row.seconds))
    if not workloads or not variants:
        raise ValueError("No workload has times of eager and of something else, so there is nothing to draw.")
    width = 0.8 / len(variants)
    with matplotlib.rc_context({"font.size": 8, "svg.fonttype": "none"}):
        figure = Figure(figsize=(1.2 * len(workloads) + 1, 3.5), layout="constrained")
        axes = figure.subplots()
        for i, variant in enumerate(variants):
            rows = {n: row for n, name in enumerate(workloads) if (row := report.row(name, variant)) is not None}
            found = {n: ratio.median for n, row in rows.items() if (ratio := report.ratio(row, EAGER)) is not None}
            places = [n + i * width for n in found]
            axes.bar(places, [1 / ratio for ratio in found.values()], width, align="edge", label=variant)
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set_yscale("log")
        axes.set_ylabel("times faster than eager, forward and backward")
        axes.set_xticks([n + 0.4 for n in range(len(workloads))], workloads, rotation=20, ha="right")
        figure.legend(loc="outside upper left", ncols=6)
        figure.suptitle(report.title(), x=1.0, y=0.02, ha="right", va="bottom")
        figure.savefig(path)


def _bars(axes: Any, cells: Mapping[int, Summit], variants: Sequence[str]) -> None:
    """One group for each cell, whose key is its place."""
    width = 0.8 / len(variants)
    for i, variant in enumerate(variants):
        found = {n: row for n, cell in cells.items() for row in cell.rows if row.variant == variant and row.kernel}
        speedups = [cells[n].eager.seconds("kernel") / row.seconds("kernel") for n, row in found.items()]  # type: ignore[union-attr]
        axes.bar([n + i * width for n in found], speedups, width, align="edge", label=variant)
    axes.axhline(1.0, color="black", linewidth=0.8)
