"""What fits a terminal: its width and its colours."""

import os
import shutil
import sys
import textwrap
from collections.abc import Callable

# Of a terminal that is narrower, lines break; what is no terminal is a file, or a page that scrolls.
LEAST_WIDTH, WIDTH_OF_FILES = 60, 160
# Role of a line -> parameters of ECMA-48's "select graphic rendition": bold, faint, yellow, cyan.
_STYLES = {"heading": "1", "source": "2", "recomputed": "33", "view again": "33", "saved": "36"}
Paint = Callable[[str, str], str]


def terminal_width(least: int = LEAST_WIDTH) -> int:
    """Characters in a line of standard output."""
    return max(least, shutil.get_terminal_size().columns) if sys.stdout.isatty() else WIDTH_OF_FILES


def paint_of(colours: bool | None) -> Paint:
    """What paints lines by their role.

    By default where standard output is a terminal with colours that nobody has switched off: see https://no-color.org.
    """
    if colours is None:
        colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return _painted if colours else lambda text, role: text


def _painted(text: str, role: str) -> str:
    """Text in the colour of its role, blanks around it left out."""
    bare = text.strip()
    style = _STYLES.get(role)
    return text.replace(bare, f"\x1b[{style}m{bare}\x1b[0m", 1) if style and bare else text


def wrapped(text: str, width: int) -> str:
    """A line as several that fit, all but the first of them indented."""
    return textwrap.fill(text, width, subsequent_indent=" " * 6, break_on_hyphens=False)
