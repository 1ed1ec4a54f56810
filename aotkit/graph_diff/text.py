"""A `GraphDiff` for a terminal or a bug report."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aotkit.graph_diff.report import Section, headings, sections
from aotkit.inspection.terminal import terminal_width, wrapped

if TYPE_CHECKING:
    from aotkit.graph_diff.result import GraphDiff

LEAST_WIDTH = 80
MOST_ROWS, MOST_CHARACTERS = 20, 44


def render_text(diff: "GraphDiff", width: int | None = None) -> str:
    """What differs, section by section, of each the first 20 rows.

    `width` defaults to the terminal's, at least 80, and to 160 if the output is not a terminal.
    """
    width = terminal_width(LEAST_WIDTH) if width is None else width
    head = "\n".join(wrapped(line, width) for line in headings(diff))
    return "\n\n".join([head, *(_section(section, width) for section in sections(diff))])


def _section(section: Section, width: int) -> str:
    shown = () if section.folded else section.rows[:MOST_ROWS]
    rows = [tuple(map(_clipped, row)) for row in (section.columns, *(row.cells for row in shown))] if shown else []
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [section.title, *("  " + _padded(row, sizes) for row in rows)]
    if shown and len(section.rows) > len(shown):
        lines.append(f"  and {len(section.rows) - len(shown)} more rows")
    return "\n".join(wrapped(line, width) for line in lines)


def _padded(row: Sequence[str], sizes: Sequence[int]) -> str:
    return "  ".join(cell.ljust(size) for cell, size in zip(row, sizes, strict=True)).rstrip()


def _clipped(cell: str) -> str:
    return cell if len(cell) <= MOST_CHARACTERS else f"{cell[: MOST_CHARACTERS - 3]}..."
