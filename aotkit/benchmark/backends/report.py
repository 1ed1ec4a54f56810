"""What `aotkit bench backends` found, as a table, in a few numbers, and as JSON."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean
from typing import Any

from aotkit.benchmark.report import MIB, MeasuredReport, Outcome, cell
from aotkit.benchmark.rivals import EAGER, TORCH_COMPILE
from aotkit.benchmark.timing import Spread, speedup, spread

AUTOTUNE = "autotune"
FORWARD, STEP = "forward", "step"
BASES = (EAGER, TORCH_COMPILE)
EXPLANATION = (
    "forward: a call without gradients; step: a call and its backward pass. Medians of wall time; / eager, "
    "/ torch.compile: a step's time as a share of theirs, below 1 is faster, ± half the interquartile range of the "
    "ratios round by round. MiB: the most that is allocated in a step, beyond what was before. first: seconds of the "
    "first call, with the check for backends, with all that was tried for autotune. as ATen: operations that a "
    "backend does not take."
)


@dataclass
class Row(Outcome):
    """One variant of one workload.

    Attributes:
        seconds: of forward and step, one number a round.
        peak: bytes, beyond what was allocated before.
        first_call: seconds.
        operations: in all graphs.
        declined: operator that runs as it is -> how often, and why.
        line: what autotune has chosen, as a line of Python.
    """

    workload: str
    variant: str
    seconds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    peak: int | None = None
    first_call: float | None = None
    operations: int = 0
    declined: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    line: str = ""

    def time(self, phase: str) -> Spread | None:
        return spread(self.seconds[phase]) if self.seconds.get(phase) else None

    @property
    def as_it_is(self) -> int:
        """How many operations the backend does not take."""
        return sum(count for count, _ in self.declined.values())


@dataclass
class BackendsReport(MeasuredReport[Row]):
    """All rows; those of one workload were timed together."""

    heading = ("workload", "variant", "forward", "step ms", "/ eager", "/ torch.compile", "MiB", "first", "as ATen")
    words = ("workload", "variant")
    by = 1
    key = ("workload", "variant")

    @property
    def workloads(self) -> list[str]:
        return list(dict.fromkeys(row.workload for row in self.rows))

    def row(self, workload: str, variant: str) -> Row | None:
        """The row of a variant that was timed."""
        named = (row for row in self.rows if (row.workload, row.variant) == (workload, variant))
        return next((row for row in named if row.seconds), None)

    def ratio(self, row: Row, base: str) -> Spread | None:
        """A step's time over the base's, round by round."""
        other = self.row(row.workload, base)
        if other is None or not row.seconds:
            return None
        return speedup(row.seconds[STEP], other.seconds[STEP])

    @classmethod
    def row_of(cls, values: Mapping[str, Any]) -> Row:
        declined = {name: (count, why) for name, (count, why) in values["declined"].items()}
        return Row(**{**values, "declined": declined})

    def _cells(self) -> Iterable[Sequence[str]]:
        for row in self.rows:
            if row.problem:
                yield row.workload, row.variant, row.word
                continue
            ratios = [self.ratio(row, base) if row.variant != base else None for base in BASES]
            yield (
                row.workload,
                row.variant,
                *(found.text(1e3) if (found := row.time(phase)) else "" for phase in (FORWARD, STEP)),
                *(
                    "" if ratio is None else f"{ratio.median:.2f} ±{(ratio.high - ratio.low) / 2:.2f}"
                    for ratio in ratios
                ),
                cell(row.peak, ",.1f", MIB),
                cell(row.first_call, ".1f"),
                f"{row.as_it_is} of {row.operations}" if row.operations else "",
            )

    def _notes(self) -> list[str]:
        lines = [f"{row.workload}: autotune: {row.line}" for row in self.rows if row.line]
        problems = [f"{row.workload}: {row.variant}: {row.problem}" for row in self.rows if row.problem]
        return [EXPLANATION, *self._means(), *self._autotune(), *lines, *self._declined(), *problems]

    def _means(self) -> Iterator[str]:
        for variant in dict.fromkeys(row.variant for row in self.rows if row.variant not in BASES):
            for base in BASES:
                found = [self.ratio(row, base) for row in self.rows if row.variant == variant]
                if known := [1 / ratio.median for ratio in found if ratio is not None]:
                    where = f"{len(known)} workloads" if len(known) > 1 else "1 workload"
                    yield f"{variant}: {base} takes {geometric_mean(known):.2f} times as long in the mean of {where}"

    def _autotune(self) -> Iterator[str]:
        """Next to the fastest of all others."""
        for row in (row for row in self.rows if row.variant == AUTOTUNE and row.seconds):
            others = [r for r in self.rows if r.workload == row.workload and r.seconds and r is not row]
            if others:
                best = min(others, key=lambda r: spread(r.seconds[STEP]).median)
                times = _around(speedup(row.seconds[STEP], best.seconds[STEP]))
                yield f"{row.workload}: autotune takes {times} times as long as {best.variant}"

    def _declined(self) -> Iterator[str]:
        """Each reason of a backend once, with the operators that it is given for."""
        found: dict[tuple[str, str], dict[str, None]] = {}
        for row in self.rows:
            for operator, (_, why) in row.declined.items():
                found.setdefault((row.variant, why), {})[operator] = None
        for (variant, why), operators in found.items():
            yield f"{variant} does not take {', '.join(operators)}: {why}"


def _around(ratio: Spread | None) -> str:
    return "" if ratio is None else f"{ratio.median:.2f} ±{(ratio.high - ratio.low) / 2:.2f}"
