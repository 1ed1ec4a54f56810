"""Pairs of reductions as lines of Triton's: what each chunk of a row changes, and what both are in the end."""

from collections.abc import Sequence
from typing import Any

from aotkit.backends.fuser.loops import Node


class Exponentials:
    """The largest value, and the sum of exp(x - center), in one walk: one exponential for each value."""

    starts = ("float('-inf')", "0")
    counts = False

    def __init__(self, of: Node, accumulators: Sequence[str]) -> None:
        self.of, (self._top, self._sum) = of, accumulators

    def each(self, value: str, mask: str | None) -> list[str]:
        x, top, total = "next", self._top, self._sum  # an infinity next to another one is not subtracted
        return [
            f"{x} = {value}" if mask is None else f"{x} = tl.where({mask}, {value}, float('-inf'))",
            f"scale = tl.where({x} == {top}, 1.0, tl.exp(-tl.abs({x} - {top})))",
            f"added = tl.where({x} > {top}, {total} * scale + 1.0, {total} + scale)",
            f"{total} = tl.where({x} == float('-inf'), {total}, added)",
            f"{top} = larger({top}, {x})",
        ]

    def first(self) -> str:
        return f"tl.reduce({self._top}, 1, larger)[:, None]"

    def second(self, center: str) -> str:
        weighed = f"tl.where({self._sum} == 0, 0, {self._sum} * tl.exp({self._top} - {center}))"
        return f"tl.sum({weighed}, 1)[:, None] + ({center} - {center})"


class Squares:
    """The sum, and the sum of the squares of x - center, in one walk.

    `seen` is how many chunks there were so far, and `counted`, for each lane, of how many it has a value in the end.
    """

    starts = ("0", "0", "0")
    counts = True

    def __init__(self, of: Node, accumulators: Sequence[str]) -> None:
        self.of, (self._sum, self._mean, self._rest) = of, accumulators

    def each(self, value: str, mask: str | None) -> list[str]:
        mean, rest, step = self._mean, self._rest, f"{value} - {self._mean}"
        return [
            f"{self._sum} += {value if mask is None else f'tl.where({mask}, {value}, 0)'}",
            f"step = {step if mask is None else f'tl.where({mask}, {step}, 0)'}",
            "moved = step * (1.0 / seen)",
            f"{mean} += moved",
            f"{rest} += step * (step - moved)",
        ]

    def first(self) -> str:
        return f"tl.sum({self._sum}, 1)[:, None]"  # the mean of a lane is none where a value is infinite

    def second(self, center: str) -> str:
        off = f"({self._mean} - {center})"
        return f"tl.sum({self._rest} + {off} * {off} * counted, 1)[:, None]"


UPDATES: dict[str, Any] = {"exponentials": Exponentials, "squares": Squares}
