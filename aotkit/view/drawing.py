"""What pictures of graphs have in common, whatever their format: made of the data that `model.py` describes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# Backgrounds that black text can be read on.
SAVED_COLOUR, RECOMPUTED_COLOUR, INPUT_COLOUR = "#fff3b0", "#ffd8a8", "#e7f0fa"
GRAPHS = ("forward", "backward")


@dataclass(frozen=True)
class Edge:
    """From one node to another, by their indices. `saved`: from forward into backward."""

    source: int
    target: int
    saved: bool = False


def edges(data: Mapping[str, Any]) -> Iterator[Edge]:
    """Who reads whom, and what forward saves for backward."""
    for i, node in enumerate(data["nodes"]):
        yield from (Edge(source, i) for source in node["inputs"])
    for saved in data["saved"]:
        if saved["placeholder"] is not None:
            yield Edge(saved["node"], saved["placeholder"], saved=True)


def label(node: Mapping[str, Any]) -> list[str]:
    """The lines that stand in the box of a node: what it is, its name, its type."""
    what, name = node["operator"] or node["role"], node["label"] or node["name"]
    return [what, *([name] if name != what else []), node["type"]]


def colours(data: Mapping[str, Any]) -> dict[int, str]:
    """The background of each node that has one: saved activations, what is recomputed, inputs."""
    activations = {v[place] for v in data["saved"] if v["kind"] == "activation" for place in ("node", "placeholder")}
    return {i: colour for i, node in enumerate(data["nodes"]) if (colour := _colour(node, i in activations))}


def _colour(node: Mapping[str, Any], is_activation: bool) -> str | None:
    if is_activation:
        return SAVED_COLOUR
    if node["role"] in ("recomputed", "view again"):
        return RECOMPUTED_COLOUR
    return None if node["operator"] else INPUT_COLOUR
