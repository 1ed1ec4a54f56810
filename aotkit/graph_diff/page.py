"""A `GraphDiff` in the viewer: what differs, next to both graphs, in which a click shows it."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from aotkit.graph_diff.markup import render_html
from aotkit.graph_diff.report import Row, headings, sections
from aotkit.view.page import Program, output, packaged, page, viewer

if TYPE_CHECKING:
    from aotkit.graph_diff.result import GraphDiff


def render_page(diff: "GraphDiff") -> str:
    """A page that needs nothing else: no network, no other file."""
    return page(f"{diff.a['name']} | {diff.b['name']}", _data(diff), _program())


def render_output(diff: "GraphDiff") -> str:
    """The same for a notebook's cell, live or exported. Where scripts do not run, it is the plain HTML."""
    return output(render_html(diff), _data(diff), _program(), 900)


def _data(diff: "GraphDiff") -> dict[str, Any]:
    found = [replace(section, rows=[_on_both_sides(row, diff) for row in section.rows]) for section in sections(diff)]
    return {"headings": headings(diff), "sections": [asdict(section) for section in found], "a": diff.a, "b": diff.b}


def _on_both_sides(row: Row, diff: "GraphDiff") -> Row:
    """What only one side saves or repeats is shown on the other side, too: where it computes that value."""

    def same(nodes: Sequence[int], here: str, there: str) -> tuple[int, ...]:
        wanted = {diff.values[here][node] for node in nodes}
        return tuple(node for node, value in enumerate(diff.values[there]) if value in wanted)

    return replace(row, a=row.a or same(row.b, "b", "a"), b=row.b or same(row.a, "a", "b"))


def _program() -> Program:
    """diff.js calls functions of viewer.js, and its style sheet uses the colours of viewer.css."""
    of_one, package = viewer(), "aotkit.graph_diff"
    script = f"{of_one.script}\n{packaged(package, 'diff.js')}"
    return Program(script, "mountDiff", f"{of_one.style}\n{packaged(package, 'diff.css')}")
