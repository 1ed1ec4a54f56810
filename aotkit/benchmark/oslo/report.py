"""What became of OSLO's workloads, as a table and as JSON."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from aotkit.benchmark.oslo.workloads import OSLO_RATIOS
from aotkit.benchmark.report import MIB, MeasuredReport, Outcome, cell
from aotkit.benchmark.rivals import EAGER, TORCH_COMPILE
from aotkit.benchmark.timing import spread

EXPLANATION = (
    "ms: one call, until the device has finished; median, ± half the interquartile range. Each variant has a process "
    "of its own; they are timed in turn. Ratios: how many times faster than eager, and than the fastest row of "
    "torch.compile. peak: the most that was allocated on the GPU. right: whether the results are those of eager."
)


@dataclass
class Row(Outcome):
    """One variant of one workload."""

    workload: str
    variant: str
    seconds: list[float] = field(default_factory=list)  # of each call
    peak_bytes: int | None = None
    differs: str | None = None  # in what its results are not those of eager, or are, but uncompiled

    @property
    def failed(self) -> bool:
        """Whether something is wrong."""
        return super().failed or self.differs is not None

    def add(self, found: Mapping[str, Any]) -> None:
        """One more round, as `process.round_of` gives it; nothing where there was none."""
        self.seconds += found.get("seconds", [])
        if found.get("peak_bytes") is not None:
            self.peak_bytes = max(found["peak_bytes"], self.peak_bytes or 0)

    @property
    def time(self) -> float | None:
        """The median; None where nothing was timed."""
        return statistics.median(self.seconds) if self.seconds else None


@dataclass
class OsloReport(MeasuredReport[Row]):
    """All rows."""

    heading = ("workload", "variant", "ms", "vs eager", "vs torch.compile", "peak MiB", "right")
    words = ("workload", "variant", "right")
    by = 1
    key = ("workload", "variant")

    def title(self) -> str:
        return f"{super().title()}, transformers {self.machine['transformers']}, {self.machine['dtype']}"

    @classmethod
    def row_of(cls, values: Mapping[str, Any]) -> Row:
        return Row(**{key: value for key, value in values.items() if not key.startswith("vs_")})

    def values_of(self, row: Row) -> dict[str, Any]:
        return {**asdict(row), "vs_eager": self.ratio(row, EAGER), "vs_torch_compile": self.ratio(row, TORCH_COMPILE)}

    def ratio(self, row: Row, family: str) -> float | None:
        """How many times faster it is than the fastest row of `EAGER` or `TORCH_COMPILE`; None where one has no time.

        Of eager's rows, the first counts.
        """
        others = [
            other.time
            for other in self.rows
            if other.workload == row.workload and other.time is not None and _is_of(other.variant, family)
        ]
        if row.time is None or not others or _is_of(row.variant, family):
            return None
        return min(others) / row.time

    def _cells(self) -> Iterable[Sequence[str]]:
        for row in self.rows:
            if row.problem:
                yield row.workload, row.variant, row.word
                continue
            numbers = [cell(self.ratio(row, family), ".2f") for family in (EAGER, TORCH_COMPILE)]
            numbers += [cell(row.peak_bytes, ",.0f", MIB), "no" if row.differs else "yes"]
            yield row.workload, row.variant, spread(row.seconds).text(1e3), *numbers

    def _notes(self) -> list[str]:
        names = {row.workload for row in self.rows}
        oslo = ", ".join(f"{name} {ratio}" for name, ratio in OSLO_RATIOS.items() if name in names)
        problems = [f"{row.workload}: {row.variant}: {row.problem or row.differs}" for row in self.rows if row.failed]
        return [EXPLANATION, f"OSLO's tutorial had over eager, on a GPU that it does not name: {oslo}.", *problems]


def _is_of(variant: str, family: str) -> bool:
    """Eager is the row of that name alone; torch.compile has several."""
    return variant == family if family == EAGER else variant.startswith(family)
