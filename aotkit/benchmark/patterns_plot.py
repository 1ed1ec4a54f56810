"""Speed-ups of fused patterns over eager, as bars."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aotkit.benchmark.pattern_cells import EAGER, FORWARD, STEP, Summit, sizes_of
from aotkit.benchmark.patterns_report import PatternsReport


def plot(report: PatternsReport, path: str | Path) -> None:
    """Write a picture: a row for each pattern, a column for each pass and type, in them groups of bars for the shapes.

    Args:
        path: its ending is the format: `.png`, `.svg`, `.pdf`.

    Raises:
        ImportError: matplotlib is missing.
        ValueError: there is nothing to draw, or matplotlib knows no such format.
    """
    import matplotlib
    from matplotlib.figure import Figure

    cells = [cell for cell in report.cells if cell.eager is not None]
    patterns = list(dict.fromkeys(cell.first.pattern for cell in cells))
    dtypes = sorted({cell.first.dtype for cell in cells})
    columns = [(phase, dtype) for phase in (FORWARD, STEP) for dtype in dtypes]
    columns = [c for c in columns if any((cell.first.phase, cell.first.dtype) == c for cell in cells)]
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
        figure.suptitle(f"times faster than eager: {report.place}", x=1.0, ha="right")
        figure.savefig(path)


def _bars(axes: Any, cells: Mapping[int, Summit], variants: Sequence[str]) -> None:
    """One group for each cell, whose key is its place."""
    width = 0.8 / len(variants)
    for i, variant in enumerate(variants):
        found = {n: row for n, cell in cells.items() for row in cell.rows if row.variant == variant and row.kernel}
        speedups = [cells[n].eager.seconds("kernel") / row.seconds("kernel") for n, row in found.items()]  # type: ignore[union-attr]
        axes.bar([n + i * width for n in found], speedups, width, align="edge", label=variant)
    axes.axhline(1.0, color="black", linewidth=0.8)
