"""The result of `bench`, as a plain table, as Markdown and as JSON."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from aotkit.benchmark.report import Report
from aotkit.benchmark.timing import Phases, Spread, speedup, spread
from aotkit.text import bytes_name

PHASES = ("forward", "backward")
EXPLANATION = (
    "Medians over {rounds} interleaved rounds ({clock}), ± half the interquartile range. "
    "vs eager: eager's time divided by the row's; noise: the interquartile ranges of both overlap, or the medians are "
    "less than 2% apart. "
    "saved: bytes that only backward needs. compile: seconds of the first call, with the check against eager."
)
SMALLEST_DIFFERENCE = 0.02  # of the medians; repetitions of a whole run differ by as much


@dataclass
class Row:
    """One variant.

    Attributes:
        backend, partition: names; "eager" and "" for the base line.
        phases: seconds of forward and backward; empty if it did not run.
        saved_bytes: distinct storage that only backward needs; None if unknown.
        compile_seconds: of the first call, with the check.
        check: "ok", or why it is not.
        way: how a call comes to its graphs, in words.
        status: "ok", "eager" (it runs, but uncompiled), "failed", "unavailable", or "" for the base line.
    """

    backend: str
    partition: str
    phases: Phases = field(default_factory=dict)
    saved_bytes: int | None = None
    compile_seconds: float | None = None
    check: str = ""
    way: str = ""
    status: str = ""

    @property
    def failed(self) -> bool:
        """Whether it can run here, but not as eager does."""
        return self.status == "failed"

    @property
    def label(self) -> str:
        return f"{self.backend} x {self.partition}" if self.partition else self.backend


@dataclass
class BenchReport(Report):
    """Eager against compiled variants of one function. The first row is eager's.

    Attributes:
        name: the function's.
        environment: torch's version, processor and threads.
        rows: eager first; variants that failed or cannot run here have a row too.
    """

    heading = (
        "backend", "partition", "forward ms", "vs eager", "backward ms", "vs eager", "saved", "compile", "check",
    )  # fmt: skip
    words = ("backend", "partition", "check")
    gap = 0

    name: str
    environment: Mapping[str, Any]
    rows: list[Row]

    def seconds(self, row: Row, phase: str) -> Spread | None:
        return spread(row.phases[phase].main) if phase in row.phases else None

    def ratio(self, row: Row, phase: str) -> Spread | None:
        """How many times faster than eager, by medians, with the quartiles of the rounds' ratios."""
        if row is self.rows[0] or phase not in row.phases:
            return None
        return speedup(self.rows[0].phases[phase].main, row.phases[phase].main)

    def verdict(self, row: Row, phase: str) -> str | None:
        """ "faster", "slower", or "noise" if that is not certain."""
        base, own = self.seconds(self.rows[0], phase), self.seconds(row, phase)
        if row is self.rows[0] or base is None or own is None:
            return None
        if base.overlaps(own) or abs(own.median / base.median - 1) < SMALLEST_DIFFERENCE:
            return "noise"
        return "faster" if own.median < base.median else "slower"

    def values_of(self, row: Row) -> dict[str, Any]:
        phases = {}
        for phase, samples in row.phases.items():
            ratio = self.ratio(row, phase)
            phases[phase] = {
                **asdict(spread(samples.main)),
                "vs_eager": asdict(ratio) if ratio else None,
                "verdict": self.verdict(row, phase),
                "samples": asdict(samples),
            }
        plain = ("backend", "partition", "status", "check", "saved_bytes", "compile_seconds")
        return {**{key: getattr(row, key) for key in plain}, "phases": phases}

    def title(self) -> str:
        return f"{self.name}: {', '.join(self.environment.values())}"

    def _notes(self) -> list[str]:
        samples = self.rows[0].phases["forward"]
        clock = "GPU time between events" if samples.device else "wall time"
        explanation = EXPLANATION.format(rounds=len(samples.main), clock=clock)
        return [explanation, *(f"{row.label}: {row.check}" for row in self.rows if row.status not in ("", "ok"))]

    def _cells(self) -> Iterable[Sequence[str]]:
        for row in self.rows:
            times = []
            for phase in PHASES:
                time, ratio = self.seconds(row, phase), self.ratio(row, phase)
                times.append(time.text(1e3) if time else "")
                times.append(
                    f"{ratio.median:.2f}x ±{ratio.half_width:.0%} {self.verdict(row, phase):6}" if ratio else ""
                )
            saved = "" if row.saved_bytes is None else bytes_name(row.saved_bytes)
            first = "" if row.compile_seconds is None else f"{row.compile_seconds:.1f} s"
            yield (row.backend, row.partition, *times, saved, first, row.status)
