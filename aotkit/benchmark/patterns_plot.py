"""Speed-ups of fused patterns over eager, as bars."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aotkit.benchmark.patterns_report import EAGER, FORWARD, STEP, PatternsReport, Summit


def plot(report: PatternsReport, path: str | Path) -> None:
    """Write a picture: a row for each pattern, a column for each pass and type, in them groups of bars for the shapes.

    Args:
        path: its ending is the format: `.png`, `.svg`, `.pdf`.

    Raises:
        ImportError: matplotlib is missing.
        ValueError: there is nothing to draw, or matplotlib knows no such format.
    """
    from matplotlib.figure import Figure

    cells = [cell for cell in report.cells if cell.eager is not None]
    patterns = list(dict.fromkeys(cell.first.pattern for cell in cells))
    dtypes = list(dict.fromkeys(cell.first.dtype for cell in cells))
    columns = [(phase, dtype) for phase in (FORWARD, STEP) for dtype in dtypes]
    columns = [c for c in columns if any((cell.first.phase, cell.first.dtype) == c for cell in cells)]
    variants = list(dict.fromkeys(row.variant for row in report.rows if row.variant != EAGER))
    if not cells or not variants:
        raise ValueError("No cell has times of eager and of something else, so there is nothing to draw.")
    figure = Figure(figsize=(5 * len(columns), 2.4 * len(patterns) + 1), layout="constrained")
    grid = figure.subplots(len(patterns), len(columns), squeeze=False)
    for pattern, line in zip(patterns, grid, strict=True):
        for (phase, dtype), axes in zip(columns, line, strict=True):
            own = [c for c in cells if (c.first.pattern, c.first.phase, c.first.dtype) == (pattern, phase, dtype)]
            _bars(axes, own, variants)
            axes.set_title(f"{pattern}, {phase}, {dtype}", fontsize=9)
    grid[0][0].legend(fontsize=7)
    figure.suptitle(f"times faster than eager: {report.place}")
    figure.savefig(path)


def _bars(axes: Any, cells: Sequence[Summit], variants: Sequence[str]) -> None:
    width = 0.8 / len(variants)
    for i, variant in enumerate(variants):
        found = [(n, row) for n, cell in enumerate(cells) for row in cell.rows if row.variant == variant and row.kernel]
        speedups = [cells[n].eager.seconds("kernel") / row.seconds("kernel") for n, row in found]  # type: ignore[union-attr]
        axes.bar([n + i * width for n, _ in found], speedups, width, align="edge", label=variant)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks([n + 0.4 for n in range(len(cells))], [cell.first.size for cell in cells], fontsize=7)
