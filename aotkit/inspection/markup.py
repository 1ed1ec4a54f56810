"""`Graphs` as Markdown and as HTML, for notebooks and bug reports.

Function names and source lines are the user's text: nothing in them may act as markup.
"""

import re
from html import escape
from typing import TYPE_CHECKING

from aotkit.inspection.lines import Line, backward_lines, forward_lines
from aotkit.inspection.text import COLUMNS, RIGHT, operation_count, region_lines, table_rows, title, totals
from aotkit.text import html, markdown, markdown_text

if TYPE_CHECKING:
    from aotkit.graphs import Graphs

# No colour without its counterpart: the fragment has to read well on light and on dark pages.
_PRE = "flex:1 1 30em;min-width:0;overflow-x:auto;margin:0;padding:.5em;border:1px solid rgba(128,128,128,.4)"
_STYLES = {"recomputed": "background:rgba(255,165,0,.3)", "source": "opacity:.65;font-style:italic"}


def render_markdown(graphs: "Graphs") -> str:
    """Markdown for GitHub and Jupyter: title, table of saved values, totals, both graphs as fenced text."""
    parts = [f"**{markdown_text(title(graphs))}**", markdown_text(operation_count(graphs))]
    rows = table_rows(graphs)
    if rows:
        parts.append(markdown([COLUMNS, *(tuple(map(markdown_text, row)) for row in rows)], RIGHT))
    for lines in filter(None, (totals(graphs), region_lines(graphs))):
        parts.append("\n".join(f"- {markdown_text(line.strip())}" for line in lines))
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
        parts.append(html([COLUMNS, *table_rows(graphs)], "white-space:nowrap", caption="saved for backward"))
    for lines in filter(None, (totals(graphs), region_lines(graphs))):
        parts.append("<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>")
    return f'<div class="aotkit-graphs">{"".join(parts)}</div>'


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
