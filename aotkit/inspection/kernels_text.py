"""What a compiled function launches, for a terminal or a bug report."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aotkit.inspection.kernels import COLUMNS, RIGHT, conditions, heading, left_out, row
from aotkit.inspection.terminal import Paint, fitted, paint_of, terminal_width, wrapped

if TYPE_CHECKING:
    from aotkit.launches import Kernels

# What a line of a narrow terminal has of a kernel: its number, name and measures. The other texts stand below.
_FIRST = tuple(i for i, column in enumerate(COLUMNS) if i in RIGHT or column == "kernel")
_INDENT = " " * 6


def render_text(kernels: "Kernels", width: int | None = None, colours: bool | None = None) -> str:
    """A table for each graph, and what is true of all, in lines of at most `width` characters.

    Where a kernel does not fit into one line, its operations, lines and reason stand below it. Width and colours are
    those of the terminal by default, as for `aotkit.inspection.render_text`.
    """
    width, paint = terminal_width() if width is None else width, paint_of(colours)
    parts = [wrapped(conditions(kernels), width)]
    for role in kernels.left_out:
        rows = [row(i, k, kernels) for i, k in enumerate(kernels.of(role))]
        others = [wrapped(f"  {line}", width) for line in left_out(kernels, role)]
        parts.append("\n".join([paint(heading(kernels, role), "heading"), *_table(rows, width, paint), *others]))
    return "\n\n".join(parts)


def _table(rows: Sequence[tuple[str, ...]], width: int, paint: Paint) -> list[str]:
    whole = [COLUMNS, *rows]
    natural = sum(2 + max(map(len, column)) for column in zip(*whole, strict=True))
    first = range(len(COLUMNS)) if natural <= width else _FIRST
    cells = [tuple(one[i] for i in first) for one in whole]
    head, *body = fitted(cells, width, right=[place for place, i in enumerate(first) if i in RIGHT])
    lines = [paint(line, "heading") for line in head]
    for one, of_kernel in zip(rows, body, strict=True):
        below = "; ".join(cell for i, cell in enumerate(one) if i not in first and cell)
        lines += of_kernel
        lines += [paint(line, "source") for line in wrapped(_INDENT + below, width).split("\n") if below]
    return lines
