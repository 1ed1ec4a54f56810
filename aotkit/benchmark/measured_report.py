"""What reports of measurements on one machine share: several runs join into one, and all print alike."""

import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, Self, TypeVar

WIDTH = 118


class MeasuredRow(Protocol):
    """A row, which is an `Outcome`."""

    @property
    def failed(self) -> bool: ...

    @property
    def key(self) -> tuple[str, ...]:
        """What no other row of a report has."""
        ...


AnyRow = TypeVar("AnyRow", bound=MeasuredRow)


@dataclass
class MeasuredReport(ABC, Generic[AnyRow]):
    """Rows that were measured on one machine.

    Attributes:
        machine: processor, cores, GPU, system, version of Python.
        device: "cpu" or "cuda".
    """

    machine: Mapping[str, Any]
    torch: str
    device: str
    rows: list[AnyRow] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether every row has numbers, but for what is impossible."""
        return not any(row.failed for row in self.rows)

    @property
    def place(self) -> str:
        """Where it was measured."""
        return f"torch {self.torch}, {self.machine['gpu'] or self.machine['processor']}"

    @classmethod
    def joined(cls, found: Sequence[Mapping[str, Any]]) -> Self:
        """One report of what `json` gave of several runs on one machine; a row that several have is the first's.

        Raises:
            ValueError: one of them is no such report; the runs were on different devices or versions of torch.
        """
        reports = [cls._read(data, f"Report {number} of {len(found)}") for number, data in enumerate(found, 1)]
        places = {(report.place, report.device) for report in reports}
        if len(places) != 1:
            raise ValueError(f"Only runs on one device and version of torch can be joined; these were on {places}.")
        rows: dict[tuple[str, ...], AnyRow] = {}
        for row in (row for report in reports for row in report.rows):
            rows.setdefault(row.key, row)
        return replace(reports[0], rows=list(rows.values()))

    @classmethod
    def _read(cls, data: Mapping[str, Any], name: str) -> Self:
        """A report of what `json` gave, and what can be printed."""
        try:
            report = cls(data["machine"], data["torch"], data["device"], [cls.row_of(row) for row in data["rows"]])
            str(report)
        except (KeyError, TypeError, AttributeError, ValueError) as e:
            raise ValueError(
                f"{name} is not what --json printed ({type(e).__name__}: {e}). Measure again, with --json."
            ) from e
        return report

    @classmethod
    @abstractmethod
    def row_of(cls, values: Mapping[str, Any]) -> AnyRow:
        """The row of which `json` gave these values."""

    @abstractmethod
    def values_of(self, row: AnyRow) -> dict[str, Any]:
        """What `json` gives of a row."""

    def json(self) -> dict[str, Any]:
        """Everything that was measured, in bytes and seconds, of types that the json module takes."""
        return {
            "schema": 1,
            "machine": dict(self.machine),
            "torch": self.torch,
            "device": self.device,
            "rows": [self.values_of(row) for row in self.rows],
        }

    def text(self, table: Iterable[str], notes: Iterable[str]) -> str:
        """The place, the lines of a table, and notes as paragraphs."""
        return "\n".join([self.place, *table, "", *(textwrap.fill(n, WIDTH, subsequent_indent="  ") for n in notes)])
