"""Tables as plain text, as Markdown and as HTML. `right` says which columns are aligned right, as far as it goes."""

import itertools
import re
import textwrap
from collections.abc import Sequence
from html import escape

Rows = Sequence[Sequence[str]]
LEAST_COLUMN = 6
_CELL = "padding:.1em .8em .1em 0"


def aligned(rows: Rows, right: Sequence[bool] = ()) -> list[str]:
    """One line for each row, in columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [_line(row, widths, right) for row in rows]


def grouped(rows: Rows, right: Sequence[bool] = (), by: int = 1) -> list[str]:
    """As `aligned`, with an empty line wherever the first cells change; the first row is the heading.

    Args:
        by: how many cells that are.
    """
    lines = []
    for n, line in enumerate(aligned(rows, right)):
        if n > 1 and rows[n][:by] != rows[n - 1][:by]:
            lines.append("")
        lines.append(line)
    return lines


def fitted(rows: Rows, width: int, right: Sequence[bool] = ()) -> list[list[str]]:
    """The lines of each row, of at most `width` characters: cells break within their column, the widest ones first.

    Words are broken only where nothing else helps.
    """
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    words = [max((len(word) for cell in column for word in cell.split()), default=0) for column in columns]
    room = width - 2 * len(columns)
    for least in (words, [LEAST_COLUMN] * len(widths)):
        while sum(widths) > room and (wider := [i for i, width in enumerate(widths) if width > least[i]]):
            widths[max(wider, key=widths.__getitem__)] -= 1
    return [_lines(row, widths, right) for row in rows]


def _lines(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> list[str]:
    cells = [
        [cell] if len(cell) <= width else textwrap.wrap(cell, width, break_on_hyphens=False)
        for cell, width in zip(row, widths, strict=True)
    ]
    return [f"  {_line(parts, widths, right)}".rstrip() for parts in itertools.zip_longest(*cells, fillvalue="")]


def _line(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    sides = (*right, *[False] * (len(widths) - len(right)))
    cells = zip(row, widths, sides, strict=True)
    return "  ".join(cell.rjust(width) if is_right else cell.ljust(width) for cell, width, is_right in cells).rstrip()


def markdown(rows: Rows, right: Sequence[bool] = ()) -> str:
    """A table in Markdown, of which the first row is the heading."""
    heading, *body = rows
    sides = ["---:" if is_right else "---" for _, is_right in itertools.zip_longest(heading, right, fillvalue=False)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [heading, sides, *body])


def markdown_text(text: str) -> str:
    """`text` such that nothing in it is markup."""
    # An entity is never markup, neither of Markdown nor of the mathematics that Jupyter looks for first.
    return re.sub(r"[^\w\s.,:;=()/+-]|_", lambda match: f"&#{ord(match.group())};", text)


def html(rows: Rows, style: str, caption: str = "") -> str:
    """A table in HTML, of which the first row is the heading; `style` is that of cells, besides."""
    above = f'<caption style="text-align:left">{caption}</caption>' if caption else ""
    head, body = html_rows("th", rows[:1], style), html_rows("td", rows[1:], style)
    return f"<table>{above}<thead>{head}</thead><tbody>{body}</tbody></table>"


def html_rows(tag: str, rows: Rows, style: str, right: Sequence[bool] = ()) -> str:
    """Rows of a table in HTML, whose cells have this tag."""

    def cell(text: str, is_right: bool) -> str:
        return f'<{tag} style="text-align:{"right" if is_right else "left"};{_CELL};{style}">{escape(text)}</{tag}>'

    lines = (itertools.starmap(cell, itertools.zip_longest(row, right, fillvalue=False)) for row in rows)
    return "".join(f"<tr>{''.join(cells)}</tr>" for cells in lines)
