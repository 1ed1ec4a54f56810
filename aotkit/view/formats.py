"""The data of `Graphs.json()` in the formats of Graphviz, Mermaid and Google's Model Explorer."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from aotkit.text import printable

Data = Mapping[str, Any]
# Backgrounds that black text can be read on.
SAVED_COLOUR, RECOMPUTED_COLOUR, INPUT_COLOUR = "#fff3b0", "#ffd8a8", "#e7f0fa"
# What can be read. Mermaid itself refuses more than 500 edges (`maxEdges`) or 50,000 characters (`maxTextSize`).
MOST_NODES, MOST_EDGES, MOST_CHARACTERS = 100, 500, 50_000


class _Edge(NamedTuple):
    """From one node to another, by their indices. `saved`: from forward into backward."""

    source: int
    target: int
    saved: bool = False


def _edges(data: Data) -> list[_Edge]:
    """Who reads whom, and what forward saves for backward."""
    reads = [_Edge(source, i) for i, node in enumerate(data["nodes"]) for source in node["inputs"]]
    saved = [row for row in data["saved"] if row["placeholder"] is not None]
    return reads + [_Edge(row["node"], row["placeholder"], saved=True) for row in saved]


def _graphs(data: Data) -> Iterator[tuple[str, list[tuple[int, Data]]]]:
    """ "forward" and "backward", as far as they are there, with their nodes."""
    for graph in ("forward", "backward"):
        nodes = [(i, node) for i, node in enumerate(data["nodes"]) if node["graph"] == graph]
        if nodes:
            yield graph, nodes


def _label(node: Data) -> list[str]:
    """The lines that stand in the box of a node: what it is, its name, its type."""
    what, name = node["operator"] or node["role"], node["label"] or node["name"]
    return [what, *([name] if name != what else []), node["type"]]


def _colours(data: Data) -> dict[int, str]:
    """The background of each node that has one: saved activations, what is recomputed, inputs."""
    activations = {v[place] for v in data["saved"] if v["kind"] == "activation" for place in ("node", "placeholder")}
    found = {}
    for i, node in enumerate(data["nodes"]):
        if i in activations:
            found[i] = SAVED_COLOUR
        elif node["role"] in ("recomputed", "view again"):
            found[i] = RECOMPUTED_COLOUR
        elif not node["operator"]:
            found[i] = INPUT_COLOUR
    return found


def render_dot(data: Data) -> str:
    """Forward and backward as two clusters of one directed graph; dashed edges are saved values.

    The language is https://graphviz.org/doc/info/lang.html; render it with `dot -Tsvg`. `nslimit` bounds its search for
    a layout: three layers of a transformer, 532 nodes, took 3 s instead of 18.
    """
    compiled_by = f"backend {data['backend']}, partition {data['partition']}"
    lines = [
        "digraph aotkit {",
        f"  label={_dot_text(data['name'], compiled_by)};",
        '  labelloc="t"; fontname="Helvetica"; nslimit="2"; nslimit1="2";',
        '  node [shape="box", style="rounded,filled", fillcolor="white", fontname="Helvetica", fontsize="10"];',
    ]
    fills = {i: f', fillcolor="{colour}"' for i, colour in _colours(data).items()}
    for graph, nodes in _graphs(data):
        lines += [f"  subgraph cluster_{graph} {{", f"    label={_dot_text(graph)};"]
        lines += [f"    n{i} [label={_dot_text(*_label(node))}{fills.get(i, '')}];" for i, node in nodes]
        lines.append("  }")
    dashed = ' [style="dashed"]'
    lines += [f"  n{e.source} -> n{e.target}{dashed if e.saved else ''};" for e in _edges(data)]
    return "\n".join([*lines, "}"]) + "\n"


def _dot_text(*lines: str) -> str:
    """A label. Backslashes begin sequences such as \\N there, and ampersands entities of HTML."""
    texts = [printable(line).replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;") for line in lines if line]
    return '"' + "\\n".join(texts) + '"'


def render_mermaid(data: Data) -> str:
    """Forward and backward as two subgraphs of a flowchart, which GitHub shows; dotted edges are saved values.

    The language is https://mermaid.js.org/syntax/flowchart.html.

    Raises:
        ValueError: the graphs are larger than 100 nodes, 500 edges or 50,000 characters of text.
    """
    edges = _edges(data)
    _require_small("nodes", len(data["nodes"]), MOST_NODES, data)
    _require_small("edges", len(edges), MOST_EDGES, data)
    lines = ["flowchart TD"]
    for graph, nodes in _graphs(data):
        lines.append(f"  subgraph {graph}[{_mermaid_text(data['name'] + ': ' + graph)}]")
        lines += [f"    n{i}[{_mermaid_text(*_label(node))}]" for i, node in nodes]
        lines.append("  end")
    lines += [f"  n{e.source} {'-.->' if e.saved else '-->'} n{e.target}" for e in edges]
    for name, colour in (("saved", SAVED_COLOUR), ("recomputed", RECOMPUTED_COLOUR)):
        if members := [f"n{i}" for i, fill in _colours(data).items() if fill == colour]:
            lines += [f"  classDef {name} fill:{colour},color:black", f"  class {','.join(members)} {name}"]
    text = "\n".join(lines) + "\n"
    _require_small("characters", len(text), MOST_CHARACTERS, data)
    return text


def _require_small(what: str, number: int, most: int, data: Data) -> None:
    if number > most:
        raise ValueError(
            f"Mermaid draws small graphs only, of at most {most} {what}; those of {data['name']!r} have {number}. "
            "Use dot, model_explorer or save_html."
        )


def _mermaid_text(*lines: str) -> str:
    """A label: whatever could be markup, of Mermaid, Markdown or HTML, is an entity, which Mermaid writes `#60;`."""
    texts = (re.sub("[^A-Za-z0-9 ,]", lambda c: f"#{ord(c.group())};", printable(line)) for line in lines if line)
    return f'"{"<br/>".join(texts)}"'


def model_explorer(data: Data) -> dict[str, Any]:
    """A collection of one graph, of types that the json module takes: `model-explorer FILE.json` shows it.

    Forward and backward are groups, and so is each module in them. What forward saves is an edge between the two. The
    keys are those of `graph_builder.py` of https://github.com/google-ai-edge/model-explorer.
    """
    ids = [f"{node['graph']}:{node['name']}" for node in data["nodes"]]
    incoming: dict[int, list[dict[str, str]]] = defaultdict(list)
    for edge in _edges(data):
        found = incoming[edge.target]
        source = {"sourceNodeId": ids[edge.source], "sourceNodeOutputId": "0"}
        found.append({**source, "targetNodeInputId": str(len(found))})
    styles = {i: {"style": {"backgroundColor": colour}} for i, colour in _colours(data).items()}
    saved = {value["node"]: value for value in data["saved"]}
    nodes = [
        {
            "id": ids[i],
            "label": node["operator"] or node["label"] or node["name"],
            "namespace": _namespace(node["graph"], node["module"]),
            "attrs": _attributes(data, node, saved.get(i)),
            "incomingEdges": incoming[i],
            "outputsMetadata": [
                {"id": str(place), "attrs": _pairs({"tensor_shape": _shape(tensor), "bytes": tensor["bytes"]})}
                for place, tensor in enumerate(node["tensors"])
            ],
            **styles.get(i, {}),
        }
        for i, node in enumerate(data["nodes"])
    ]
    graph = {"id": data["name"], "nodes": nodes, "groupNodeAttributes": _groups(data)}
    return {"label": data["name"], "graphs": [graph]}


def _namespace(graph: str, module: str) -> str:
    return "/".join([graph, *(part.replace("/", "_") for part in module.split(".") if part)])


def _attributes(data: Data, node: Data, saved: Data | None) -> list[dict[str, str]]:
    found = {key: node[key] for key in ("name", "target", "expression", "type", "class", "role")}
    if node["source"] is not None:
        source = data["sources"][node["source"]]
        found["source"] = f"{source['file']}:{source['line']}  {source['code']}"
    if saved is not None:
        found |= {"saved because": saved["reason"] or saved["kind"], "saved bytes": saved["bytes"]}
    return _pairs(found | {f"recomputation {key}": value for key, value in (node["cost"] or {}).items()})


def _pairs(values: Data) -> list[dict[str, str]]:
    return [{"key": key, "value": str(value)} for key, value in values.items() if value not in (None, "")]


def _shape(tensor: Data) -> str:
    return f"{tensor['dtype']}[{','.join(map(str, tensor['shape']))}]"


def _groups(data: Data) -> dict[str, dict[str, str]]:
    """Namespace -> what is shown of it: "" is all."""
    about = {key: data[key] for key in ("backend", "partition", "torch")} | data["totals"]
    groups = {"": {key: str(value) for key, value in about.items()}}
    for module, name in data["modules"].items():
        groups |= {_namespace(graph, module): {"class": name} for graph, _ in _graphs(data) if module}
    return groups
