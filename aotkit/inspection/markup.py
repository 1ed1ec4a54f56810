"""`Graphs` as Markdown and as HTML, for notebooks and bug reports.

Function names and source lines are the user's text: nothing in them may act as markup.
"""

import re
from html import escape
from typing import TYPE_CHECKING

from aotkit.inspection.divided import region_lines
from aotkit.inspection.lines import Line, backward_lines, forward_lines
from aotkit.inspection.text import COLUMNS, operation_count, table_rows, title, totals

if TYPE_CHECKING:
    from aotkit.graphs import Graphs

# No colour without its counterpart: the fragment has to read well on light and on dark pages.
_PRE = "flex:1 1 30em;min-width:0;overflow-x:auto;margin:0;padding:.5em;border:1px solid rgba(128,128,128,.4)"
_CELL = "text-align:left;padding:.1em .8em .1em 0;white-space:nowrap"
_STYLES = {"recomputed": "background:rgba(255,165,0,.3)", "source": "opacity:.65;font-style:italic"}


def render_markdown(graphs: "Graphs") -> str:
    """Markdown for GitHub and Jupyter: title, table of saved values, totals, both graphs as fenced text."""
    parts = [f"**{markdown_text(title(graphs))}**", markdown_text(operation_count(graphs))]
    if graphs.backward is not None:
        rows = table_rows(graphs)
        if rows:
            table = [COLUMNS, ("---", "---", "---:", "---", "---", "---"), *(map(markdown_text, row) for row in rows)]
            parts.append("\n".join(f"| {' | '.join(row)} |" for row in table))
        parts.append("\n".join(f"- {markdown_text(line)}" for line in totals(graphs)))
    if graphs.regions:
        parts.append("\n".join(f"- {markdown_text(line.strip())}" for line in region_lines(graphs)))
    parts += [_fence(lines) for lines in (forward_lines(graphs), backward_lines(graphs)) if lines]
    return "\n\n".join(parts) + "\n"


def render_html(graphs: "Graphs") -> str:
    """A self-contained HTML fragment without scripts: both graphs side by side, table of saved values, totals.

    Lines that backward recomputes have the class `aotkit-recomputed` and a tinted background.
    """
    listings = [lines for lines in (forward_lines(graphs), backward_lines(graphs)) if lines]
    parts = [f"<p><b>{escape(title(graphs))}</b><br>{escape(operation_count(graphs))}</p>"]
    columns = "".join(f'<pre style="{_PRE}">{"".join(map(_html_line, lines))}</pre>' for lines in listings)
    parts.append(f'<div style="display:flex;flex-wrap:wrap;gap:.5em">{columns}</div>')
    if graphs.backward is not None:
        parts.append(_html_table(table_rows(graphs)))
        parts.append("<ul>" + "".join(f"<li>{escape(line)}</li>" for line in totals(graphs)) + "</ul>")
    if graphs.regions:
        parts.append("<ul>" + "".join(f"<li>{escape(line)}</li>" for line in region_lines(graphs)) + "</ul>")
    return f'<div class="aotkit-graphs">{"".join(parts)}</div>'


def markdown_text(text: str) -> str:
    """`text` such that nothing in it is markup."""
    # An entity is never markup, neither of Markdown nor of the mathematics that Jupyter looks for first.
    return re.sub(r"[^\w\s.,:;=()/+-]|_", lambda match: f"&#{ord(match.group())};", text)


def _fence(lines: list[Line]) -> str:
    heading, *body = [line.text for line in lines]
    text = "\n".join([heading, *("  " + line for line in body)])
    # A fence ends at a run of backticks as long as its own.
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}"


def _html_line(line: Line) -> str:
    text = escape(line.text)
    if line.role in _STYLES:
        text = f'<span class="aotkit-{line.role}" style="{_STYLES[line.role]}">{text}</span>'
    return text + "\n"


def _html_table(rows: list[tuple[str, ...]]) -> str:
    head = "".join(f'<th style="{_CELL}">{column}</th>' for column in COLUMNS)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escape(cell)}</td>' for cell in row) + "</tr>" for row in rows
    )
    caption = '<caption style="text-align:left">saved for backward</caption>'
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
