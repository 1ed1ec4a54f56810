"""What a compiled function launches: rows of a table, HTML, JSON.

Names and source lines are the user's text: nothing in them may act as markup, or move the cursor of a terminal.
"""

from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from aotkit.inspection.nodes import bytes_name, seconds_name
from aotkit.text import printable

if TYPE_CHECKING:
    from aotkit.launches import Kernels, Launched

MOST_OPERATORS, MOST_LINES, MOST_CHARACTERS = 6, 3, 40
COLUMNS = ("", "kernel", "operations", "lines", "in", "out", "time", "GB/s", "of copy", "why alone")
RIGHT = {0, 4, 5, 6, 7, 8}
_CELL = "padding:.1em .8em .1em 0;vertical-align:top;text-align:"
_PAGE = (
    '<!DOCTYPE html>\n<html><head><meta charset="utf-8">'
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    "<title>{title}</title></head><body>{body}</body></html>\n"
)


def as_html(kernels: "Kernels | None", introduction: str) -> str:
    """A fragment: the tables, and the code of each kernel to unfold."""
    body = f"<pre>{escape(introduction)}</pre>"
    if kernels is None:
        return body
    body += f"<p>{escape(conditions(kernels))}</p>"
    for role in kernels.left_out:
        found = kernels.of(role)
        rows = [_cells("th", COLUMNS), *(_cells("td", row(i, k, kernels)) for i, k in enumerate(found))]
        body += f"<h4>{escape(heading(kernels, role))}</h4><table>{''.join(rows)}</table>"
        body += "".join(f"<p>{escape(line)}</p>" for line in left_out(kernels, role))
        body += "".join(_details(i, k) for i, k in enumerate(found))
    return f'<div class="aotkit-kernels">{body}</div>'


def page(title: str, body: str) -> str:
    """A document of its own, in which no script may run."""
    return _PAGE.format(title=escape(title), body=body)


def as_json(kernels: "Kernels") -> dict[str, Any]:
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


def conditions(kernels: "Kernels") -> str:
    """How the times came about, and the peak of memory."""
    if kernels.failure is not None:
        return f"not timed: {printable(kernels.failure)}"
    copies = f"a copy moves {_number((kernels.copying or 0) / 1e9)} GB/s"
    inputs = ", on made-up inputs of the sizes that it was traced with" if kernels.made_up else ""
    caches = "medians, each kernel with the caches as those before it leave them"
    held = "" if kernels.peak is None else f"; besides its inputs, it holds {bytes_name(kernels.peak)} at the most"
    return f"on {kernels.device}, where {copies}; {caches}{inputs}{held}"


def heading(kernels: "Kernels", role: str) -> str:
    """`forward: 3 kernels, 3 launches, 45 us`."""
    launches = kernels.launches(role)
    parts = [_count(len(kernels.of(role)), "kernel")]
    parts.append("who knows how many launches" if launches is None else _count(launches, "launch", "launches"))
    if role in kernels.seconds:
        parts.append(seconds_name(kernels.seconds[role]))
    return f"{role}: {', '.join(parts)}"


def left_out(kernels: "Kernels", role: str) -> list[str]:
    """The operations that no kernel computes, by reason."""
    reasons: dict[str, list[str]] = {}
    for name, reason in kernels.left_out[role].items():
        reasons.setdefault(reason, []).append(name)
    return [f"{printable(reason)}: {', '.join(names)}" for reason, names in reasons.items()]


def row(number: int, launched: "Launched", kernels: "Kernels") -> tuple[str, ...]:
    """A kernel as the texts of `COLUMNS`."""
    share = kernels.share(launched)
    return (
        str(number),
        _shortened(launched.kernel.name),
        operators(launched.operators),
        _listed([str(line) for line in launched.sources], MOST_LINES),
        bytes_name(launched.read),
        bytes_name(launched.written),
        "" if launched.seconds is None else seconds_name(launched.seconds),
        "" if launched.bandwidth is None else _number(launched.bandwidth / 1e9),
        "" if share is None else f"{share:.0%}",
        printable(launched.why),
    )


def operators(names: Sequence[str]) -> str:
    """`mul x3, add, erf`, those that come often first."""
    counts = Counter(names).most_common()
    return _listed([name if n == 1 else f"{name} x{n}" for name, n in counts], MOST_OPERATORS)


def _listed(texts: Sequence[str], most: int) -> str:
    more = [f"{len(texts) - most} more"] if len(texts) > most else []
    return ", ".join([*texts[:most], *more])


def _shortened(name: str) -> str:
    name = printable(name)
    return name if len(name) <= MOST_CHARACTERS else f"{name[: MOST_CHARACTERS - 8]}...{name[-5:]}"


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.0f}"


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def _cells(tag: str, row: Sequence[str]) -> str:
    cells = (
        f'<{tag} style="{_CELL}{"right" if i in RIGHT else "left"}">{escape(text)}</{tag}>'
        for i, text in enumerate(row)
    )
    return f"<tr>{''.join(cells)}</tr>"


def _details(number: int, launched: "Launched") -> str:
    kernel = launched.kernel
    lines = [f"{line}  {line.code}" for line in launched.sources]
    text = "\n".join([f"operations: {', '.join(launched.operations)}", *lines])
    code = f"<pre>{escape(kernel.code)}</pre>" if kernel.code else ""
    title = escape(f"{number} {printable(kernel.name)} ({kernel.language})")
    return f"<details><summary>{title}</summary><pre>{escape(text)}</pre>{code}</details>"
