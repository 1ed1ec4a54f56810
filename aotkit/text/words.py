"""Names, numbers and paths in one line, and sums of numbers that may be unknown."""

import difflib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

N = TypeVar("N", int, float)
MOST_OPERATORS = 6


def printable(text: str) -> str:
    """`text` without line breaks and control characters, which could move the cursor or forge lines."""
    return "".join(c if c.isprintable() else " " for c in text)


def is_installed(filename: str) -> bool:
    """Whether this source file is an installed package's, which its users did not write."""
    return not {"site-packages", "dist-packages"}.isdisjoint(filename.split(os.sep))


def nearest(name: str, names: Sequence[str]) -> str:
    """` Did you mean 'inductor'?`, if one of the names is like this one."""
    close = difflib.get_close_matches(name, names, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 kernel`, `2 launches`; the plural is that with an s by default."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def listed(texts: Sequence[str], most: int) -> str:
    """`a, b, 2 more`."""
    more = [f"{len(texts) - most} more"] if len(texts) > most else []
    return ", ".join([*texts[:most], *more])


def operators(names: Sequence[str]) -> str:
    """`mul x3, add, erf`, those that come often first."""
    counts = Counter(names).most_common()
    return listed([name if n == 1 else f"{name} x{n}" for name, n in counts], MOST_OPERATORS)


def bytes_name(nbytes: int | None) -> str:
    """`8.0 MiB`; `?` if unknown."""
    if nbytes is None:
        return "?"
    size, unit = _scaled(nbytes, ("B", "KiB", "MiB", "GiB", "TiB"), 1024, 1023.95)
    return f"{nbytes} B" if unit == "B" else f"{size:.1f} {unit}"


def flops_name(flops: int) -> str:
    """`3.2 GFLOP`."""
    size, unit = _scaled(flops, ("", "K", "M", "G", "T"), 1000, 999.95)
    return f"{size:.1f} {unit}FLOP" if unit else f"{flops} FLOP"


def seconds_name(seconds: float) -> str:
    """`45 us`; three digits."""
    size, unit = _scaled(seconds * 1e9, ("ns", "us", "ms", "s"), 1000, 999.5)
    return f"{size:.3g} {unit}"


def _scaled(size: float, units: Sequence[str], step: int, end: float) -> tuple[float, str]:
    """The size in the first unit in which it is below `end`, else in the last one."""
    for unit in units[:-1]:
        if size < end:
            return size, unit
        size /= step
    return size, units[-1]


def sum_known(values: Iterable[N | None]) -> N | None:
    """The sum; None if one of the values is unknown."""
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if len(known) == len(found) else None


@dataclass(frozen=True)
class SourceLine:
    """One line of the user's code: path of the file, line number, stripped text, name of the function it is in."""

    file: str
    line: int
    code: str
    function: str

    def __str__(self) -> str:
        # A notebook's cell is a file of a meaningless name.
        cell = "ipykernel" in self.file or self.file.startswith("<ipython")
        return f"{'cell' if cell else os.path.basename(self.file)}:{self.line}"
