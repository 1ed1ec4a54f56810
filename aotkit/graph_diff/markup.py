"""A `GraphDiff` as Markdown and as HTML without scripts; nothing of the user's may act as markup."""

from html import escape
from typing import TYPE_CHECKING

from aotkit.graph_diff.report import Section, headings, sections
from aotkit.inspection.markup import markdown_text

if TYPE_CHECKING:
    from aotkit.graph_diff.result import GraphDiff

_CELL = "text-align:left;vertical-align:top;padding:.1em .8em .1em 0"


def render_markdown(diff: "GraphDiff") -> str:
    """Markdown for GitHub and Jupyter: a table for each section."""
    parts = ["\n".join(f"- {markdown_text(line)}" for line in headings(diff))]
    for section in sections(diff):
        parts.append(f"**{markdown_text(section.title)}**")
        if section.rows and not section.folded:
            cells = [section.columns, ("---",) * len(section.columns)]
            cells += [tuple(map(markdown_text, row.cells)) for row in section.rows]
            parts.append("\n".join(f"| {' | '.join(row)} |" for row in cells))
    return "\n\n".join(parts) + "\n"


def render_html(diff: "GraphDiff") -> str:
    """A self-contained HTML fragment without scripts."""
    lines = "<br>".join(escape(line) for line in headings(diff))
    return f'<div class="aotkit-diff"><p>{lines}</p>{"".join(map(_section, sections(diff)))}</div>'


def _section(section: Section) -> str:
    title = escape(section.title)
    if not section.rows:
        return f"<p>{title}</p>"
    head = "".join(f'<th style="{_CELL}">{escape(column)}</th>' for column in section.columns)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escape(cell)}</td>' for cell in row.cells) + "</tr>"
        for row in section.rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<details{'' if section.folded else ' open'}><summary>{title}</summary>{table}</details>"
