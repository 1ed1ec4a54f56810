"""The cells of `aotkit bench patterns`: a pattern, forward or with backward, in a type and a shape."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aotkit.benchmark.report import Outcome
from aotkit.benchmark.rivals import EAGER, TORCH_COMPILE
from aotkit.benchmark.timing import Spread

FORWARD, STEP = PHASES = "FW", "FW+BW"


@dataclass
class Row(Outcome):
    """One variant in one cell: a pattern in a phase, a type and a shape."""

    pattern: str
    phase: str
    dtype: str
    shape: list[int]
    drops: bool  # whether the pattern has dropout
    variant: str
    kernel: Spread | None = None  # seconds between events on a GPU with a cold L2 cache; on a CPU, of wall time
    wall: Spread | None = None  # seconds from call to the end
    peak_bytes: int | None = None  # the most that is alive, with inputs
    ideal_bytes: float | None = None  # the least that has to be read and written
    ideal_seconds: float | None = None  # what a copy that reads and writes as much took in the same rounds
    compile_seconds: float | None = None  # of the first call, with its check
    held_out: bool = False  # whether the pattern is none of the grid

    @property
    def size(self) -> str:
        return "x".join(map(str, self.shape))

    @property
    def cell(self) -> tuple[str, ...]:
        return self.pattern, self.phase, self.dtype, self.size

    def seconds(self, clock: str) -> float:
        found: Spread | None = getattr(self, clock)
        assert found is not None
        return found.median


class Summit:
    """The fastest of each in one cell; None where none was timed."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows, self.first = rows, rows[0]
        timed = sorted((row for row in rows if row.kernel), key=lambda row: row.seconds("kernel"))

        def fastest(fits: Callable[[str], bool]) -> Row | None:
            return next((row for row in timed if fits(row.variant)), None)

        self.eager = fastest(lambda name: name == EAGER)
        self.torch = fastest(lambda name: name.startswith(TORCH_COMPILE))
        self.ours = fastest(lambda name: name != EAGER and not name.startswith(TORCH_COMPILE))

    def ratio(self, base: str, clock: str = "kernel") -> float | None:
        """How many times the time of ours `base` takes: "eager" or "torch"."""
        other = getattr(self, base)
        return None if other is None or self.ours is None else other.seconds(clock) / self.ours.seconds(clock)

    @property
    def memory(self) -> float | None:
        """Our peak, as a multiple of eager's."""
        if self.ours is None or self.eager is None or not self.eager.peak_bytes or not self.ours.peak_bytes:
            return None
        return self.ours.peak_bytes / self.eager.peak_bytes

    @property
    def roofline(self) -> float | None:
        """What part of our time a copy takes that moves no more than has to be moved."""
        return self.ours.ideal_seconds / self.ours.seconds("kernel") if self.ours and self.ours.ideal_seconds else None


def sizes_of(cells: Sequence[Summit]) -> list[str]:
    """Of all cells, from few elements to many; equal ones as they were measured."""
    elements = {cell.first.size: math.prod(cell.first.shape) for cell in cells}
    return sorted(elements, key=elements.__getitem__)
