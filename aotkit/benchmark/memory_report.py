"""What `python -m aotkit bench memory` found, as a table and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from aotkit.benchmark.measured_report import MeasuredReport
from aotkit.benchmark.outcome import Outcome, family_and_limit
from aotkit.benchmark.timing import Spread, spread
from aotkit.text import grouped

EAGER, TORCH_COMPILE = "eager", "torch.compile"
HEADING = ("model", "variant", "peak MiB", "simulated", "off by", "step ms", "first step s")
RIGHT = (False, False, True, True, True, True, True)  # aligned right
EXPLANATION = (
    "peak: the most memory during one training step: parameters, buffers, inputs and gradients with all that lives in "
    "between. simulated: the same, reckoned from the two graphs, and how far that is off. step: median of forward and "
    "backward together, ± half the interquartile range. first step: with compilation. A number after a name is a "
    "budget: a fraction of what there would be without one. impossible: so are smaller ones, which are left out."
)


@dataclass
class Row(Outcome):
    """One variant of one model.

    Attributes:
        peak_bytes: the most during one training step.
        simulated_bytes: the same by `evaluation`; None if its graphs are not known.
        seconds: of one step, one number a round; empty if it was not timed.
        compile_seconds: of the first step.
    """

    model: str
    variant: str
    peak_bytes: int | None = None
    simulated_bytes: int | None = None
    seconds: list[float] = field(default_factory=list)
    compile_seconds: float | None = None

    @property
    def key(self) -> tuple[str, ...]:
        return self.model, self.variant

    @property
    def family(self) -> str:
        """The name without the budget."""
        return family_and_limit(self.variant)[0]

    @property
    def budget(self) -> float:
        """Infinite without one."""
        return family_and_limit(self.variant)[1]

    @property
    def is_ours(self) -> bool:
        return self.family not in (EAGER, TORCH_COMPILE)

    @property
    def step(self) -> Spread | None:
        return spread(self.seconds) if self.seconds else None

    @property
    def error(self) -> float | None:
        """By what part of the measured peak the simulated one is higher."""
        return self.simulated_bytes / self.peak_bytes - 1 if self.simulated_bytes and self.peak_bytes else None


@dataclass
class MemoryReport(MeasuredReport[Row]):
    """All rows; those of one model were timed together."""

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(row.model for row in self.rows))

    def measured(self, model: str) -> list[Row]:
        """The rows of a model that have both a peak and a time."""
        return [row for row in self.rows if row.model == model and row.peak_bytes and row.seconds]

    def dominating(self, row: Row) -> list[Row]:
        """The rows of ours whose peak and median time are both at most those of `row`."""

        def is_below(other: Row) -> bool:
            return _peak(other) <= _peak(row) and _time(other) <= _time(row)

        return [other for other in self.measured(row.model) if other.is_ours and is_below(other)]

    @classmethod
    def row_of(cls, values: Mapping[str, Any]) -> Row:
        return Row(**{key: value for key, value in values.items() if key != "dominated_by"})

    def values_of(self, row: Row) -> dict[str, Any]:
        return {**asdict(row), "dominated_by": self._dominated_by(row)}

    def __str__(self) -> str:
        table = grouped([HEADING, *map(_cells, self.rows)], RIGHT)
        verdicts = [line for model in self.models for line in self._verdicts(model)]
        problems = [f"{row.model}: {row.variant}: {row.problem}" for row in self.rows if row.problem]
        return self.text(table, [EXPLANATION, *verdicts, *problems])

    def _dominated_by(self, row: Row) -> list[str] | None:
        """None for what is no point of torch.compile's."""
        if row.family != TORCH_COMPILE or row not in self.measured(row.model):
            return None
        return [other.variant for other in self.dominating(row)]

    def _verdicts(self, model: str) -> list[str]:
        """Which of ours need neither more time nor more memory than each point of torch.compile's."""
        rows = self.measured(model)
        theirs, ours = ([r for r in rows if r.family == TORCH_COMPILE], [r for r in rows if r.is_ours])
        if not theirs or not ours:
            return []
        found = {row.variant: ", ".join(self._dominated_by(row) or ()) for row in theirs}
        lines = [f"{model}: no more memory and no more time than {name}: {by or 'none'}" for name, by in found.items()]
        return [*lines, _lowest(model, theirs, ours)]


def _lowest(model: str, theirs: Sequence[Row], ours: Sequence[Row]) -> str:
    low, our_low = (min(rows, key=_peak) for rows in (theirs, ours))
    return (
        f"{model}: the lowest peaks: {our_low.variant} {_mebibytes(_peak(our_low))} MiB, {low.variant} "
        f"{_mebibytes(_peak(low))} MiB ({_peak(our_low) / _peak(low) - 1:+.1%})"
    )


def _peak(measured: Row) -> int:
    assert measured.peak_bytes is not None
    return measured.peak_bytes


def _time(measured: Row) -> float:
    assert measured.step is not None
    return measured.step.median


def _cells(row: Row) -> tuple[str, ...]:
    if row.problem:
        return (row.model, row.variant, row.word, *[""] * (len(HEADING) - 3))
    step = row.step
    return (
        row.model,
        row.variant,
        _mebibytes(row.peak_bytes),
        _mebibytes(row.simulated_bytes),
        "" if row.error is None else f"{row.error:+.1%}",
        "" if step is None else f"{step.median * 1e3:.2f} ±{step.half_width:.0%}",
        "" if row.compile_seconds is None else f"{row.compile_seconds:.1f}",
    )


def _mebibytes(nbytes: int | None) -> str:
    return "" if nbytes is None else f"{nbytes / 2**20:,.1f}"
