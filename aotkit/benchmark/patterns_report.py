"""What `python -m aotkit bench patterns` found, as a table and as JSON."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from aotkit.alignment import aligned
from aotkit.benchmark.outcome import Outcome
from aotkit.benchmark.timing import Spread

EAGER, TORCH_COMPILE = "eager", "torch.compile"
FORWARD, STEP = "FW", "FW+BW"
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
WIDTH = 118


@dataclass
class Row(Outcome):
    """One variant in one cell.

    Attributes:
        pattern, phase, dtype, shape: the cell.
        drops: whether the pattern has dropout.
        kernel: seconds between events on a GPU with a cold L2 cache; on a CPU, of wall time.
        wall: seconds from call to the end.
        peak_bytes: the most that is alive, with inputs.
        ideal_bytes: the least that has to be read and written.
        ideal_seconds: what a copy that reads and writes as much took in the same rounds.
        compile_seconds: of the first call, with its check.
    """

    pattern: str
    phase: str
    dtype: str
    shape: list[int]
    drops: bool
    variant: str
    kernel: Spread | None = None
    wall: Spread | None = None
    peak_bytes: int | None = None
    ideal_bytes: float | None = None
    ideal_seconds: float | None = None
    compile_seconds: float | None = None

    @property
    def size(self) -> str:
        return "x".join(map(str, self.shape))

    @property
    def key(self) -> tuple[str, ...]:
        return self.pattern, self.phase, self.dtype, self.size

    def seconds(self, clock: str) -> float:
        found: Spread | None = getattr(self, clock)
        assert found is not None
        return found.median


@dataclass
class Summit:
    """The fastest of each in one cell; None where none was timed."""

    rows: Sequence[Row]

    def __post_init__(self) -> None:
        timed = sorted((row for row in self.rows if row.kernel), key=lambda row: row.seconds("kernel"))
        self.eager = next((row for row in timed if row.variant == EAGER), None)
        self.torch = next((row for row in timed if row.variant.startswith(TORCH_COMPILE)), None)
        ours = (row for row in timed if row.variant != EAGER and not row.variant.startswith(TORCH_COMPILE))
        self.ours = next(ours, None)

    @property
    def first(self) -> Row:
        return self.rows[0]

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


@dataclass
class PatternsReport:
    """All rows; those of one cell were timed together.

    Attributes:
        machine: processor, cores, GPU, system, version of Python.
        device: "cpu" or "cuda".
    """

    machine: Mapping[str, Any]
    torch: str
    device: str
    rows: list[Row] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether every variant ran, and gave the right results."""
        return not any(row.failed for row in self.rows)

    @property
    def cells(self) -> list[Summit]:
        found: dict[tuple[str, ...], list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.key, []).append(row)
        return [Summit(rows) for rows in found.values()]

    @classmethod
    def joined(cls, found: Sequence[Mapping[str, Any]]) -> "PatternsReport":
        """One report of what `json` gave of several runs on one machine; a row that several have is the first's.

        Raises:
            ValueError: the runs were on different devices or versions of torch.
        """
        places = {(f["machine"]["gpu"] or f["machine"]["processor"], f["torch"], f["device"]) for f in found}
        if len(places) != 1:
            raise ValueError(f"Only runs on one device and version of torch can be joined; these were on {places}.")
        rows: dict[tuple[str, ...], Row] = {}
        for values in (row for f in found for row in f["rows"]):
            spreads = {clock: values[clock] and Spread(**values[clock]) for clock in CLOCKS}
            row = Row(**{**values, **spreads})
            rows.setdefault((*row.key, row.variant), row)
        return cls(found[0]["machine"], found[0]["torch"], found[0]["device"], list(rows.values()))

    def json(self) -> dict[str, Any]:
        """Everything that was measured, in bytes and seconds, of types that the json module takes."""
        return {
            "schema": 1,
            "machine": dict(self.machine),
            "torch": self.torch,
            "device": self.device,
            "rows": [asdict(row) for row in self.rows],
        }

    def __str__(self) -> str:
        from aotkit.benchmark.patterns_summary import summary

        lines = [f"torch {self.torch}, {self.machine['gpu'] or self.machine['processor']}"]
        lines += aligned([HEADING, *map(_cells, self.cells)], RIGHT)
        problems = [f"{' '.join(row.key)}: {row.variant}: {row.problem}" for row in self.rows if row.problem]
        notes = [EXPLANATION.format(clock=CLOCK_NAMES[self.device]), *summary(self.cells), *problems]
        return "\n".join([*lines, "", *(textwrap.fill(note, WIDTH, subsequent_indent="  ") for note in notes)])


def _cells(cell: Summit) -> tuple[str, ...]:
    rows = (cell.eager, cell.torch, cell.ours)
    kernel, wall = ([f"{row.seconds(clock) * 1e6:.1f}" if row else "" for row in rows] for clock in CLOCKS)
    return (
        *cell.first.key,
        *kernel,
        cell.ours.variant if cell.ours else "failed" if any(row.problem for row in cell.rows) else "",
        *(_two_digits(cell.ratio(base)) for base in ("torch", "eager")),
        *wall,
        *(f"{row.peak_bytes / 2**20:.1f}" if row and row.peak_bytes else "" for row in (cell.eager, cell.ours)),
        "" if cell.roofline is None else f"{cell.roofline:.0%}",
    )


def _two_digits(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
