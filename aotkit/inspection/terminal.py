"""What fits a terminal: its width, its colours, and a table in so many columns."""

import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from itertools import zip_longest

# Of a terminal that is narrower, lines break; what is no terminal is a file, or a page that scrolls.
LEAST_WIDTH, WIDTH_OF_FILES = 60, 160
LEAST_COLUMN = 6
# Role of a line -> parameters of ECMA-48's "select graphic rendition": bold, faint, yellow, cyan.
_STYLES = {"heading": "1", "source": "2", "recomputed": "33", "view again": "33", "saved": "36"}
Paint = Callable[[str, str], str]


def terminal_width(least: int = LEAST_WIDTH) -> int:
    """Characters in a line of standard output."""
    return max(least, shutil.get_terminal_size().columns) if sys.stdout.isatty() else WIDTH_OF_FILES


def has_colours() -> bool:
    """Whether standard output is a terminal with colours that nobody has switched off: see https://no-color.org."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint_of(colours: bool | None) -> Paint:
    """What paints lines by their role; by default in colours where standard output has them."""
    return _painted if (has_colours() if colours is None else colours) else _plain


def _painted(text: str, role: str) -> str:
    """Text in the colour of its role, blanks around it left out."""
    bare = text.strip()
    style = _STYLES.get(role)
    return text.replace(bare, f"\x1b[{style}m{bare}\x1b[0m", 1) if style and bare else text


def _plain(text: str, role: str) -> str:
    return text


def wrapped(text: str, width: int) -> str:
    """A line as several that fit, all but the first of them indented."""
    return textwrap.fill(text, width, subsequent_indent=" " * 6, break_on_hyphens=False)


def fitted(rows: Sequence[Sequence[str]], width: int, right: Sequence[int] = ()) -> list[list[str]]:
    """Rows of cells as lines of at most `width` characters: cells break within their column, the widest ones first.

    `right` are the columns that are flush right. Words are broken only where nothing else helps.
    """
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    words = [max((len(word) for cell in column for word in cell.split()), default=0) for column in columns]
    room = width - 2 * len(columns)
    widths = _narrowed(_narrowed(widths, words, room), [LEAST_COLUMN] * len(widths), room)
    return [_lines(row, widths, right) for row in rows]


def _narrowed(widths: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    widths = list(widths)
    while sum(widths) > room and (wider := [i for i, width in enumerate(widths) if width > least[i]]):
        widths[max(wider, key=widths.__getitem__)] -= 1
    return widths


def _lines(row: Sequence[str], widths: Sequence[int], right: Sequence[int]) -> list[str]:
    cells = [
        [cell] if len(cell) <= width else textwrap.wrap(cell, width, break_on_hyphens=False)
        for cell, width in zip(row, widths, strict=True)
    ]
    return [
        "".join(
            "  " + (part.rjust(width) if i in right else part.ljust(width))
            for i, (part, width) in enumerate(zip(parts, widths, strict=True))
        ).rstrip()
        for parts in zip_longest(*cells, fillvalue="")
    ]
