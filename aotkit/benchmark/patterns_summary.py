"""All cells of `python -m aotkit bench patterns` in a few numbers."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import geometric_mean

from aotkit.benchmark.pattern_cells import FORWARD, STEP, Summit, sizes_of

# Geometric means over the plots of xFormers' documentation: NVFuser against eager, on a V100.
PUBLISHED = {FORWARD: 2.62, STEP: 1.46}
AT_AN_END = 2  # shapes that count as the largest, and as the smallest


def summary(cells: Sequence[Summit]) -> list[str]:
    """Lines of text; what was not measured has none."""
    return [*_speed(cells), *_published(cells), *_memory(cells), *_ends(cells)]


def _speed(cells: Sequence[Summit]) -> Iterator[str]:
    for phase in (FORWARD, STEP):
        own = [cell for cell in cells if cell.first.phase == phase]
        for what, chosen in (("with dropout", [c for c in own if c.first.drops]), ("all patterns", own)):
            ratios = _present(chosen, lambda cell: cell.ratio("torch"))
            if not ratios:
                continue
            worst, ratio = min(ratios, key=lambda pair: pair[1])
            slower = sum(ratio < 1 for _, ratio in ratios)
            yield (
                f"{phase}, {what}: torch.compile takes {_mean(ratios):.2f} times aotkit's time in the geometric mean "
                f"of {len(ratios)} cells; less in {slower}; worst: {ratio:.2f}, {' '.join(worst.first.cell)}"
            )


def _published(cells: Sequence[Summit]) -> Iterator[str]:
    for phase, theirs in PUBLISHED.items():
        grid = [cell for cell in cells if cell.first.phase == phase and cell.first.drops]
        if ratios := _present(grid, lambda cell: cell.ratio("eager")):
            low, high = min(r for _, r in ratios), max(r for _, r in ratios)
            yield (
                f"{phase}, with dropout: eager takes {_mean(ratios):.2f} times aotkit's time in the geometric mean, "
                f"from {low:.2f} to {high:.2f}; xFormers' plots (NVFuser, V100): {theirs}"
            )


def _memory(cells: Sequence[Summit]) -> Iterator[str]:
    for phase in (FORWARD, STEP):
        ratios = _present([c for c in cells if c.first.phase == phase], lambda cell: cell.memory)
        if ratios:
            worst, ratio = max(ratios, key=lambda pair: pair[1])
            mean = _mean(ratios)
            yield f"{phase}: peak memory is {mean:.2f} of eager's; at most {ratio:.2f}: {' '.join(worst.first.cell)}"


def _ends(cells: Sequence[Summit]) -> Iterator[str]:
    sizes = sizes_of(cells)
    small, large = sizes[:AT_AN_END], sizes[-AT_AN_END:]
    for phase in (FORWARD, STEP):
        own = [cell for cell in cells if cell.first.phase == phase]
        if shares := _present([c for c in own if c.first.size in large], lambda cell: cell.roofline):
            worst, share = min(shares, key=lambda pair: pair[1])
            yield (
                f"{phase}, largest shapes ({', '.join(large)}): {_mean(shares):.0%} of the roofline; at least "
                f"{share:.0%}: {' '.join(worst.first.cell)}"
            )
        near = [cell for cell in own if cell.first.size in small]
        for base, name in (("eager", "eager"), ("torch", "torch.compile")):
            if walls := _present(near, functools.partial(Summit.ratio, base=base, clock="wall")):
                yield (
                    f"{phase}, smallest shapes ({', '.join(small)}): {name} takes {_mean(walls):.2f} times "
                    "aotkit's wall time"
                )


def _present(cells: Iterable[Summit], value: Callable[[Summit], float | None]) -> list[tuple[Summit, float]]:
    return [(cell, found) for cell in cells if (found := value(cell)) is not None]


def _mean(pairs: Sequence[tuple[Summit, float]]) -> float:
    return geometric_mean([value for _, value in pairs])
