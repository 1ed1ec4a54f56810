"""Kernels that serve many sizes.

The text of a kernel has a mark around each number that follows from sizes. Without these numbers it is a *template*:
tiles, masks, the form of addresses, which is what the kernel is good for. The first numbers are literals of its code.
When others come, those that differ become arguments, equal ones as one; what stays the same stays a literal. So a
kernel is compiled once more for the second size, and for another one only where numbers that were the same are not.

Triton would compile once more for an argument that is 1. Where a multiple of 16 makes for wider loads, whether it is
one is a part of the template.
"""

import re
import threading

MARK = re.compile(r"\$(=?)([^$]+)\$")
ALIGNED = 16  # elements: what Triton tells multiples of apart from others


def number(value: float) -> str:
    """A number that follows from sizes: a stride, an offset, a bound of what is contiguous."""
    return f"${value!r}$"


def count(value: float) -> str:
    """One that does not bear on how memory is read, whatever its factors: of rows, of programs, of elements."""
    return f"$={value!r}$"


def literal(text: str) -> str:
    """The text with its numbers as literals."""
    return MARK.sub(r"\2", text)


def template(text: str) -> str:
    """The text without its numbers."""
    return MARK.sub("$", text)


class Templates:
    """Which numbers of a kernel have to be arguments, by its template."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: dict[tuple[str, int], list[tuple[str, ...]]] = {}

    def fitted(self, text: str, warps: int) -> tuple[str, dict[str, int], list[str]]:
        """A kernel for these numbers: its text, its arguments by name, and those that are no multiples of 16."""
        marks = MARK.findall(text)
        numbers = tuple(number for _, number in marks)
        matters = {i for i, (kind, _) in enumerate(marks) if not kind}
        with self._lock:
            columns = self._columns((template(text), warps), numbers)
        names: dict[tuple[str, ...], str] = {}
        for column in columns:
            if len({*column}) > 1:
                names.setdefault(column, f"s{len(names)}")
        arguments = {names[c]: _integer(n) for c, n in zip(columns, numbers, strict=True) if c in names}
        wide = {names[columns[i]] for i in matters if columns[i] in names}
        plain = [name for name, value in arguments.items() if name not in wide or value % ALIGNED]
        rest = iter(zip(columns, numbers, strict=True))
        return MARK.sub(lambda _: names.get((at := next(rest))[0], at[1]), text), arguments, plain

    def _columns(self, template: tuple[str, int], numbers: tuple[str, ...]) -> list[tuple[str, ...]]:
        """For each place, the numbers that tell it from others; these are a sample more if they tell more places."""
        samples = self._samples.setdefault(template, [])
        columns = [*zip(*samples, strict=True)] if samples else [()] * len(numbers)
        now = dict(zip(columns, numbers, strict=True))
        same = zip(columns, numbers, strict=True)
        if not samples or not all(now[c] == n and (len({*c}) > 1 or c[0] == n) for c, n in same):
            samples.append(numbers)
        return [*zip(*samples, strict=True)]


def _integer(text: str) -> int:
    return int(text) if text.lstrip("-").isdigit() else int(float(text))
