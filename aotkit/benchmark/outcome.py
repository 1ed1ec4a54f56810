"""What every row of a benchmark can come to instead of numbers."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from aotkit.errors import BudgetError


@dataclass(kw_only=True)
class Outcome:
    """Of one row.

    Attributes:
        problem: why there are no numbers.
        impossible: whether that is because no partition keeps within the memory that was asked for.
    """

    problem: str | None = None
    impossible: bool = False

    @property
    def failed(self) -> bool:
        """Whether something is wrong."""
        return self.problem is not None and not self.impossible

    @property
    def word(self) -> str:
        """What a table says in place of the numbers."""
        return "impossible" if self.impossible else "failed"

    def fail(self, error: Exception) -> None:
        self.problem = f"{type(error).__name__}: {in_a_line(error)}"
        self.impossible = isinstance(error, BudgetError)


def in_a_line(error: Exception) -> str:
    """What an error says, without the graph that a CompileError shows."""
    return " ".join(str(getattr(error, "reason", None) or error).split())


class Judged(Protocol):
    """A row, or a point, that may be impossible as an `Outcome` is."""

    @property
    def impossible(self) -> bool: ...


AnyJudged = TypeVar("AnyJudged", bound=Judged)


def family_and_limit(name: str) -> tuple[str, float]:
    """Of "nx_min_cut peak 0.4", "nx_min_cut peak" and 0.4; of a name without a limit, itself and infinity."""
    family, _, last = name.rpartition(" ")
    return (family, float(last)) if last.replace(".", "", 1).isdigit() else (name, math.inf)


def judged_if_possible(names: Iterable[str], judge: Callable[[str], AnyJudged]) -> Iterator[AnyJudged]:
    """What is found by each name, but for limits that are smaller than an impossible one of the same family."""
    impossible: dict[str, float] = {}
    for name in names:
        family, limit = family_and_limit(name)
        if limit >= impossible.get(family, 0.0):
            found = judge(name)
            if found.impossible:
                impossible[family] = limit
            yield found
