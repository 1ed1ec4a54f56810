"""Step time against peak memory, as a picture."""

from math import isfinite
from pathlib import Path

from aotkit.benchmark.memory_report import MemoryReport


def plot(report: MemoryReport, path: str | Path) -> None:
    """Write a picture with one axis pair for each model, and in it a curve for each family, from budget to budget.

    Args:
        path: its ending is the format: `.png`, `.svg`, `.pdf`.

    Raises:
        ImportError: matplotlib is missing.
        ValueError: there is nothing to draw, or matplotlib knows no such format.
    """
    from matplotlib.figure import Figure

    models = [model for model in report.models if report.measured(model)]
    if not models:
        raise ValueError("No row has both a peak and a time, so there is nothing to draw.")
    families = dict.fromkeys(row.family for model in models for row in report.measured(model))
    colours = {family: f"C{i}" for i, family in enumerate(families)}
    figure = Figure(figsize=(7.5 * len(models), 5.5), layout="constrained")
    for axes, model in zip(figure.subplots(1, len(models), squeeze=False)[0], models, strict=True):
        rows = report.measured(model)
        for family in dict.fromkeys(row.family for row in rows):
            own = sorted((row for row in rows if row.family == family), key=lambda row: row.budget)
            times = [row.step.median * 1e3 for row in own if row.step]
            peaks = [(row.peak_bytes or 0) / 2**30 for row in own]
            axes.plot(peaks, times, marker="o", label=family, color=colours[family])
            for row, peak, time in zip(own, peaks, times, strict=True):
                if isfinite(row.budget):
                    axes.annotate(
                        f"{row.budget:g}", (peak, time), textcoords="offset points", xytext=(4, 4), fontsize=7
                    )
        axes.set_title(model)
        axes.set_xlabel("peak memory, GiB")
        axes.set_ylabel("training step, ms")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(report.place)
    figure.savefig(path)
