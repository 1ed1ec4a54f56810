"""What all benchmarks report: rows that may have failed, a table with notes, JSON, several runs joined into one."""

import os
import platform
import re
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch

from aotkit.errors import BudgetError
from aotkit.text import grouped, markdown

WIDTH = 118
MIB = 2**20


@dataclass(kw_only=True)
class Outcome:
    """What a row has instead of numbers."""

    problem: str | None = None  # why there are none
    impossible: bool = False  # whether that is because no partition keeps within the memory that was asked for

    @property
    def failed(self) -> bool:
        """Whether something is wrong."""
        return self.problem is not None and not self.impossible

    @property
    def word(self) -> str:
        """What a table says in place of the numbers."""
        return "impossible" if self.impossible else "failed"

    def fail(self, error: Exception) -> None:
        self.problem = in_words(error)
        self.impossible = isinstance(error, BudgetError)


def in_a_line(error: Exception) -> str:
    """What an error says, without the graph that a CompileError shows."""
    return " ".join(str(getattr(error, "reason", None) or error).split())


def in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {in_a_line(error)}"


def cell(value: float | None, form: str, unit: float = 1.0) -> str:
    """A number as `format(value / unit, form)` shows it; nothing for None."""
    return "" if value is None else format(value / unit, form)


class Table(ABC):
    """What is shown as a table between a title and notes."""

    heading: ClassVar[Sequence[str]]  # names of the columns
    words: ClassVar[Collection[str]]  # those of them that are aligned left; the others are numbers
    by: ClassVar[int] = 0  # how many of its first cells a row shares with those of its group; 0: there are no groups
    gap: ClassVar[int] = 1  # empty lines between table and notes

    @abstractmethod
    def title(self) -> str: ...

    @abstractmethod
    def _cells(self) -> Iterable[Sequence[str]]:
        """Of each row; those that one lacks at its end are empty."""

    @abstractmethod
    def _notes(self) -> Iterable[str]: ...

    def _table(self) -> list[Sequence[str]]:
        """The heading and all cells."""
        return [(*cells, *[""] * (len(self.heading) - len(cells))) for cells in (self.heading, *self._cells())]

    def __str__(self) -> str:
        heading, *_ = table = self._table()
        lines = grouped(table, [name not in self.words for name in heading], self.by)
        notes = [textwrap.fill(note, WIDTH, subsequent_indent="  ") for note in self._notes()]
        return "\n".join([self.title(), *lines, *[""] * self.gap, *notes])

    def _repr_markdown_(self) -> str:
        heading, *_ = table = self._table()
        lines = markdown(table, [name not in self.words for name in heading])
        return "\n\n".join([f"**{self.title()}**", lines, *self._notes()])


class Report(Table):
    """Rows, as a table and as JSON. Subclasses are dataclasses."""

    rows: list[Any]

    @property
    def passed(self) -> bool:
        """Whether every row has numbers, but for what is impossible."""
        return not any(row.failed for row in self.rows)

    def json(self) -> dict[str, Any]:
        """Everything that was found, in bytes, seconds and FLOP, of types that the json module takes."""
        return {"schema": 1, **vars(self), "rows": [self.values_of(row) for row in self.rows]}

    def values_of(self, row: Any) -> dict[str, Any]:
        """What `json` gives of a row."""
        return asdict(row)


AnyRow = TypeVar("AnyRow", bound=Outcome)


@dataclass
class MeasuredReport(Report, Generic[AnyRow]):
    """Rows that were measured on one machine."""

    key: ClassVar[Sequence[str]]  # names of what tells a row from all others

    machine: Mapping[str, Any]
    torch: str
    device: str  # "cpu" or "cuda"
    rows: list[AnyRow] = field(default_factory=list)

    def title(self) -> str:
        """Where it was measured."""
        return f"torch {self.torch}, {self.machine['gpu'] or self.machine['processor']}"

    @classmethod
    def joined(cls, found: Sequence[Mapping[str, Any]]) -> Self:
        """One report of what `json` gave of several runs on one machine; a row that several have is the first's.

        Raises:
            ValueError: one of them is no such report; the runs were on different devices or versions of torch.
        """
        reports = [cls._read(data, f"Report {number} of {len(found)}") for number, data in enumerate(found, 1)]
        places = {(report.title(), report.device) for report in reports}
        if len(places) != 1:
            raise ValueError(f"Only runs on one device and version of torch can be joined; these were on {places}.")
        rows: dict[tuple[str, ...], AnyRow] = {}
        for row in (row for report in reports for row in report.rows):
            rows.setdefault(attrgetter(*cls.key)(row), row)
        return replace(reports[0], rows=list(rows.values()))

    @classmethod
    def _read(cls, data: Mapping[str, Any], name: str) -> Self:
        try:
            report = cls(data["machine"], data["torch"], data["device"], [cls.row_of(row) for row in data["rows"]])
            str(report)  # what can be read can be printed
        except (KeyError, TypeError, AttributeError, ValueError) as e:
            raise ValueError(
                f"{name} is not what --json printed ({type(e).__name__}: {e}). Measure again, with --json."
            ) from e
        return report

    @classmethod
    @abstractmethod
    def row_of(cls, values: Mapping[str, Any]) -> AnyRow:
        """The row of which `json` gave these values."""


def machine(device: str) -> Mapping[str, Any]:
    """What measurements on a device run on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
    }


def _processor() -> str:
    """The model's name, where the system tells it."""
    try:
        known = re.search(r"(?m)^model name\s*:\s*(.*\S)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        known = None
    return known[1] if known else platform.processor() or platform.machine()
