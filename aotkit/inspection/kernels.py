"""What a compiled function launches: tables for a terminal, HTML, JSON.

Names and source lines are the user's text: nothing in them may act as markup, or move the cursor of a terminal.
"""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from aotkit.text import (
    Paint,
    bytes_name,
    counted,
    fitted,
    html_rows,
    listed,
    operators,
    paint_of,
    printable,
    seconds_name,
    terminal_width,
    wrapped,
)

if TYPE_CHECKING:
    from aotkit.launches import Kernels, Launched

MOST_LINES, MOST_CHARACTERS = 3, 40
COLUMNS = ("", "kernel", "operations", "lines", "in", "out", "time", "GB/s", "of copy", "why alone")
RIGHT = (True, False, False, False, True, True, True, True, True, False)
# What a line of a narrow terminal has of a kernel: its number, name and measures. The other texts stand below.
_FIRST = tuple(i for i, column in enumerate(COLUMNS) if RIGHT[i] or column == "kernel")
_INDENT = " " * 6
_CELL = "vertical-align:top"
_PAGE = (
    '<!DOCTYPE html>\n<html><head><meta charset="utf-8">'
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    "<title>{title}</title></head><body>{body}</body></html>\n"
)


def kernels_text(kernels: "Kernels") -> str:
    """A table for each graph, and what is true of all, in the width and the colours of the terminal.

    Where a kernel does not fit into one line, its operations, lines and reason stand below it.
    """
    width, paint = terminal_width(), paint_of(None)
    parts = [wrapped(_conditions(kernels), width)]
    for role in kernels.left_out:
        others = [wrapped(f"  {line}", width) for line in _left_out(kernels, role)]
        table = _text_table(_rows(kernels, role), width, paint)
        parts.append("\n".join([paint(_heading(kernels, role), "heading"), *table, *others]))
    return "\n\n".join(parts)


def _text_table(rows: Sequence[tuple[str, ...]], width: int, paint: Paint) -> list[str]:
    natural = sum(2 + max(map(len, column)) for column in zip(*rows, strict=True))
    first = range(len(COLUMNS)) if natural <= width else _FIRST
    head, *body = fitted([[row[i] for i in first] for row in rows], width, [RIGHT[i] for i in first])
    lines = [paint(line, "heading") for line in head]
    for row, of_kernel in zip(rows[1:], body, strict=True):
        below = "; ".join(cell for i, cell in enumerate(row) if i not in first and cell)
        lines += of_kernel
        lines += [paint(line, "source") for line in wrapped(_INDENT + below, width).split("\n") if below]
    return lines


def kernels_html(kernels: "Kernels | None", introduction: str) -> str:
    """A fragment: the tables, and the code of each kernel to unfold."""
    body = f"<pre>{escape(introduction)}</pre>"
    if kernels is None:
        return body
    body += f"<p>{escape(_conditions(kernels))}</p>"
    for role in kernels.left_out:
        head, *rows = _rows(kernels, role)
        table = html_rows("th", [head], _CELL, RIGHT) + html_rows("td", rows, _CELL, RIGHT)
        body += f"<h4>{escape(_heading(kernels, role))}</h4><table>{table}</table>"
        body += "".join(f"<p>{escape(line)}</p>" for line in _left_out(kernels, role))
        body += "".join(_details(i, k) for i, k in enumerate(kernels.of(role)))
    return f'<div class="aotkit-kernels">{body}</div>'


def _details(number: int, launched: "Launched") -> str:
    kernel = launched.kernel
    lines = [f"{line}  {line.code}" for line in launched.sources]
    text = "\n".join([f"operations: {', '.join(launched.operations)}", *lines])
    code = f"<pre>{escape(kernel.code)}</pre>" if kernel.code else ""
    title = escape(f"{number} {printable(kernel.name)} ({kernel.language})")
    return f"<details><summary>{title}</summary><pre>{escape(text)}</pre>{code}</details>"


def plain_page(title: str, body: str) -> str:
    """A document of its own, in which no script may run."""
    return _PAGE.format(title=escape(title), body=body)


def kernels_json(kernels: "Kernels") -> dict[str, Any]:
    """Bytes and seconds; None where something is not known."""
    return {
        "device": kernels.device,
        "copy_bytes_per_second": kernels.copying,
        "seconds": dict(kernels.seconds),
        "failure": kernels.failure,
        "made_up_inputs": kernels.made_up,
        "peak_bytes": kernels.peak,
        "left_out": {role: dict(found) for role, found in kernels.left_out.items()},
        "kernels": [
            {
                "role": k.role,
                "name": k.kernel.name,
                "operations": list(k.operations),
                "lines": [{"file": s.file, "line": s.line, "code": s.code} for s in k.sources],
                "bytes_in": k.read,
                "bytes_out": k.written,
                "seconds": k.seconds,
                "peak_bytes": k.peak,
                "launches": k.kernel.launches,
                "why_alone": k.why,
                "language": k.kernel.language,
                "code": k.kernel.code,
            }
            for k in kernels.kernels
        ],
    }


def _conditions(kernels: "Kernels") -> str:
    """How the times came about, and the peak of memory."""
    if kernels.failure is not None:
        return f"not timed: {printable(kernels.failure)}"
    copies = f"a copy moves {_number((kernels.copying or 0) / 1e9)} GB/s"
    inputs = ", on made-up inputs of the sizes that it was traced with" if kernels.made_up else ""
    caches = "medians, each kernel with the caches as those before it leave them"
    held = "" if kernels.peak is None else f"; besides its inputs, it holds {bytes_name(kernels.peak)} at the most"
    return f"on {kernels.device}, where {copies}; {caches}{inputs}{held}"


def _heading(kernels: "Kernels", role: str) -> str:
    """`forward: 3 kernels, 3 launches, 45 us`."""
    launches = kernels.launches(role)
    parts = [counted(len(kernels.of(role)), "kernel")]
    parts.append("who knows how many launches" if launches is None else counted(launches, "launch", "launches"))
    if role in kernels.seconds:
        parts.append(seconds_name(kernels.seconds[role]))
    return f"{role}: {', '.join(parts)}"


def _left_out(kernels: "Kernels", role: str) -> list[str]:
    """The operations that no kernel computes, by reason."""
    reasons: dict[str, list[str]] = {}
    for name, reason in kernels.left_out[role].items():
        reasons.setdefault(reason, []).append(name)
    return [f"{printable(reason)}: {', '.join(names)}" for reason, names in reasons.items()]


def _rows(kernels: "Kernels", role: str) -> list[tuple[str, ...]]:
    """`COLUMNS`, and their texts for each kernel."""
    return [COLUMNS, *(_row(i, kernel, kernels) for i, kernel in enumerate(kernels.of(role)))]


def _row(number: int, launched: "Launched", kernels: "Kernels") -> tuple[str, ...]:
    name, share = printable(launched.kernel.name), kernels.share(launched)
    return (
        str(number),
        name if len(name) <= MOST_CHARACTERS else f"{name[: MOST_CHARACTERS - 8]}...{name[-5:]}",
        operators(launched.operators),
        listed([str(line) for line in launched.sources], MOST_LINES),
        bytes_name(launched.read),
        bytes_name(launched.written),
        "" if launched.seconds is None else seconds_name(launched.seconds),
        "" if launched.bandwidth is None else _number(launched.bandwidth / 1e9),
        "" if share is None else f"{share:.0%}",
        printable(launched.why),
    )


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.0f}"
