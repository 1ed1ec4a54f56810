"""Graphs for Google's Model Explorer (https://github.com/google-ai-edge/model-explorer).

The format is that of its `graph_builder.py`: a collection of graphs, with these names of keys.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from aotkit.view.drawing import Edge, colours, edges


def model_explorer(data: Mapping[str, Any]) -> dict[str, Any]:
    """A collection of one graph, of types that the json module takes: `model-explorer FILE.json` shows it.

    Forward and backward are groups, and so is each module in them. What forward saves is an edge between the two.
    """
    incoming: dict[int, list[Edge]] = {}
    for edge in edges(data):
        incoming.setdefault(edge.target, []).append(edge)
    fills = colours(data)
    ids = [f"{node['graph']}:{node['name']}" for node in data["nodes"]]
    saved = {value["node"]: value for value in data["saved"]}
    nodes = []
    for i, node in enumerate(data["nodes"]):
        described: dict[str, Any] = {
            "id": ids[i],
            "label": node["operator"] or node["label"] or node["name"],
            "namespace": _namespace(node["graph"], node["module"]),
            "attrs": _attributes(data, node, saved.get(i)),
            "incomingEdges": [
                {"sourceNodeId": ids[edge.source], "sourceNodeOutputId": "0", "targetNodeInputId": str(place)}
                for place, edge in enumerate(incoming.get(i, ()))
            ],
            "outputsMetadata": [
                {"id": str(place), "attrs": _pairs({"tensor_shape": _shape(tensor), "bytes": tensor["bytes"]})}
                for place, tensor in enumerate(node["tensors"])
            ],
        }
        if i in fills:
            described["style"] = {"backgroundColor": fills[i]}
        nodes.append(described)
    graph = {"id": data["name"], "nodes": nodes, "groupNodeAttributes": _groups(data)}
    return {"label": data["name"], "graphs": [graph]}


def _namespace(graph: str, module: str) -> str:
    return "/".join([graph, *(part.replace("/", "_") for part in module.split(".") if part)])


def _attributes(
    data: Mapping[str, Any], node: Mapping[str, Any], saved: Mapping[str, Any] | None
) -> list[dict[str, str]]:
    source = None if node["source"] is None else data["sources"][node["source"]]
    cost = node["cost"] or {}
    return _pairs(
        {
            "name": node["name"],
            "target": node["target"],
            "expression": node["expression"],
            "type": node["type"],
            "class": node["class"],
            "role": node["role"],
            "source": None if source is None else f"{source['file']}:{source['line']}  {source['code']}",
            "saved because": None if saved is None else saved["reason"] or saved["kind"],
            "saved bytes": None if saved is None else saved["bytes"],
            **{f"recomputation {key}": value for key, value in cost.items()},
        }
    )


def _pairs(values: Mapping[str, Any]) -> list[dict[str, str]]:
    return [{"key": key, "value": str(value)} for key, value in values.items() if value not in (None, "")]


def _shape(tensor: Mapping[str, Any]) -> str:
    return f"{tensor['dtype']}[{','.join(map(str, tensor['shape']))}]"


def _groups(data: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Namespace -> what is shown of it: "" is all."""
    about = {key: str(data[key]) for key in ("backend", "partition", "torch")}
    groups = {"": {**about, **{key: str(value) for key, value in data["totals"].items()}}}
    present: Sequence[str] = sorted({node["graph"] for node in data["nodes"]})
    for module, name in data["modules"].items():
        groups |= {_namespace(graph, module): {"class": name} for graph in present if module}
    return groups
