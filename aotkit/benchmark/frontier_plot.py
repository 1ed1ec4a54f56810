"""`Frontier` drawn with matplotlib, which is needed here alone."""

from itertools import groupby
from typing import TYPE_CHECKING, Any

from aotkit.errors import UnavailableError

if TYPE_CHECKING:
    from aotkit.benchmark.frontier_report import Frontier

PANELS = {"saved": "saved for backward, MiB", "peak": "peak of memory, MiB"}


def plot(frontier: "Frontier", axes: Any = None) -> Any:
    """Two panels, memory to the right and time upwards; each family is one line, in the order of its limits."""
    if axes is None:
        _, axes = _pyplot().subplots(1, len(PANELS), figsize=(11, 4.5), sharey=True, layout="constrained")
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


def _pyplot() -> Any:
    try:
        from matplotlib import pyplot
    except ImportError as e:
        raise UnavailableError(
            f"Frontier.plot draws with matplotlib, which cannot be imported ({e}). Install it: pip install matplotlib"
        ) from e
    return pyplot
