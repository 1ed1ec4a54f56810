"""Tables, as plain text and as Markdown."""

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], right: Sequence[bool] = ()) -> list[str]:
    """One line for each row, in columns of equal width.

    Args:
        right: which columns are aligned right; those beyond it are not.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [">" if is_right else "<" for is_right in (*right, *[False] * (len(widths) - len(right)))]
    line = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    return [line.format(*row).rstrip() for row in rows]


def grouped(rows: Sequence[Sequence[str]], right: Sequence[bool] = (), by: int = 1) -> list[str]:
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


def markdown(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    """A table in Markdown, of which the first row is the heading.

    Args:
        right: which columns are aligned right.
    """
    heading, *body = rows
    table = [heading, ["---:" if is_right else "---" for is_right in right], *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in table)
