"""What every row of a benchmark can come to instead of numbers."""

from dataclasses import dataclass

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
        self.problem = " ".join(f"{type(error).__name__}: {error}".split())
        self.impossible = isinstance(error, BudgetError)
