"""Small graphs as a flowchart of Mermaid's (https://mermaid.js.org/syntax/flowchart.html), which GitHub shows."""

import re
from collections.abc import Mapping
from typing import Any

from aotkit.text import printable
from aotkit.view.drawing import GRAPHS, RECOMPUTED_COLOUR, SAVED_COLOUR, colours, edges, label

# What can be read. Mermaid itself refuses more than 500 edges (`maxEdges`) or 50,000 characters (`maxTextSize`).
MOST_NODES, MOST_EDGES, MOST_CHARACTERS = 100, 500, 50_000


def render_mermaid(data: Mapping[str, Any]) -> str:
    """Forward and backward as two subgraphs; dotted edges are saved values.

    Raises:
        ValueError: the graphs are larger than 100 nodes, 500 edges or 50,000 characters of text.
    """
    found = list(edges(data))
    _require("nodes", len(data["nodes"]), MOST_NODES, data)
    _require("edges", len(found), MOST_EDGES, data)
    lines = ["flowchart TD"]
    for graph in GRAPHS:
        nodes = [(i, node) for i, node in enumerate(data["nodes"]) if node["graph"] == graph]
        if nodes:
            lines.append(f"  subgraph {graph}[{_quoted(data['name'] + ': ' + graph)}]")
            lines += [f"    n{i}[{_quoted(*label(node))}]" for i, node in nodes]
            lines.append("  end")
    lines += [f"  n{e.source} {'-.->' if e.saved else '-->'} n{e.target}" for e in found]
    for name, colour in (("saved", SAVED_COLOUR), ("recomputed", RECOMPUTED_COLOUR)):
        if members := [f"n{i}" for i, fill in colours(data).items() if fill == colour]:
            lines += [f"  classDef {name} fill:{colour},color:black", f"  class {','.join(members)} {name}"]
    text = "\n".join(lines) + "\n"
    _require("characters", len(text), MOST_CHARACTERS, data)
    return text


def _require(what: str, number: int, most: int, data: Mapping[str, Any]) -> None:
    if number > most:
        raise ValueError(
            f"Mermaid draws small graphs only, of at most {most} {what}; those of {data['name']!r} have {number}. "
            "Use dot, model_explorer or save_html."
        )


def _quoted(*lines: str) -> str:
    """A label: whatever could be markup, of Mermaid, Markdown or HTML, is an entity, which Mermaid writes `#60;`."""
    texts = (re.sub("[^A-Za-z0-9 ,]", lambda c: f"#{ord(c.group())};", printable(line)) for line in lines if line)
    return f'"{"<br/>".join(texts)}"'
