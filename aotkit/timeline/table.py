"""A timeline as a table: plain, and in HTML with bars."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from aotkit.text import aligned, bytes_name, html_rows, printable

if TYPE_CHECKING:
    from aotkit.timeline.recording import Stage, Timeline

HEADING = ("stage", "seconds", "share", "memory", "on the GPU")
RIGHT = (False, True, True, True, True)
REST = "the call itself, and what is between the stages"
LEAST_SHARE = 0.01  # of the call, that is worth a line of what is in no stage
_BAR = "background:linear-gradient(to right,transparent {0:.1%},#69c {0:.1%},#69c {1:.1%},transparent {1:.1%})"


def as_text(timeline: "Timeline") -> str:
    """One line for each stage, those in another one indented."""
    rows = [("  " * depth + name, *cells) for depth, name, cells, _ in _rows(timeline)]
    table = _without_empty([HEADING, *rows])
    lines = aligned(table, RIGHT[: len(table[0])])
    return "\n".join([_title(timeline), *(f"  {line}" for line in lines)])


def as_html(timeline: "Timeline") -> str:
    """The same, and when each stage began and ended, as a bar."""
    heading, *rows = _without_empty([HEADING, *(("", *cells) for _, _, cells, _ in _rows(timeline))])
    lines = [html_rows("th", [heading], "", RIGHT[: len(heading)]).replace("</tr>", "<th></th></tr>")]
    for (depth, name, _, ends), (_, *cells) in zip(_rows(timeline), rows, strict=True):
        first = f'<td style="text-align:left;padding-left:{depth}em">{escape(printable(name))}</td>'
        bar = f'<td style="min-width:20em;{_BAR.format(*ends)}"></td>' if ends else "<td></td>"
        others = html_rows("td", [cells], "", [True] * len(cells))
        lines.append(others.replace("<tr>", f"<tr>{first}").replace("</tr>", f"{bar}</tr>"))
    return f"<p>{escape(_title(timeline))}</p><table>{''.join(lines)}</table>"


def in_a_line(timeline: "Timeline", most: int = 4) -> str:
    """The stages that take longest: `14.2 s: trace and compile 11.3 s, check 2.1 s`."""
    longest = sorted(timeline.stages, key=lambda stage: -stage.seconds)[:most]
    told = ", ".join(f"{stage.name} {stage.seconds:.2g} s" for stage in longest)
    return f"{timeline.seconds:.3g} s" + (f": {told}" if told else "")


def _title(timeline: "Timeline") -> str:
    return f"first call of {printable(timeline.subject)}: {timeline.seconds:.2f} s"


def _rows(
    timeline: "Timeline",
) -> "Iterator[tuple[int, str, Sequence[str], tuple[float, float] | None]]":
    """(depth, name, other cells, begin and end as shares of the call) of each stage."""
    whole = max(timeline.seconds, 1e-9)

    def rows(stages: "Sequence[Stage]", depth: int) -> "Iterator[tuple[int, str, Sequence[str], tuple[float, float]]]":
        for stage in stages:
            memory = ["" if not n else bytes_name(n) for n in (stage.memory, stage.device_memory)]
            cells = (f"{stage.seconds:.2f}", f"{stage.seconds / whole:.0%}", *memory)
            yield depth, stage.name, cells, (stage.begin / whole, (stage.begin + stage.seconds) / whole)
            yield from rows(stage.stages, depth + 1)

    yield from rows(timeline.stages, 0)
    rest = timeline.seconds - sum(stage.seconds for stage in timeline.stages)
    if rest / whole >= LEAST_SHARE:
        yield 0, REST, (f"{rest:.2f}", f"{rest / whole:.0%}", "", ""), None


def _without_empty(table: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """The table without memory of a kind that no stage took."""
    kept = [i for i, column in enumerate(zip(*table, strict=True)) if i < 3 or any(column[1:])]
    return [[row[i] for i in kept] for row in table]
