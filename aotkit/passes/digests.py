"""Graphs -> short texts that are equal for graphs which compute the same of inputs of the same kind."""

import hashlib
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate

LENGTH = 12  # hexadecimal digits: no two regions of a program have the same by chance


def digest(*graphs: GraphModule, rough: bool = False) -> str:
    """Of operators, what they are called with, and the types, sizes, strides and devices of values; not of names.

    Constants that a graph holds count by their kind, not by their values.

    Args:
        rough: sizes, and all other integers, count by their powers of two.
    """
    found = hashlib.sha256()
    for graph in graphs:
        for line in _lines(graph, rough):
            found.update(line.encode() + b"\n")
        found.update(b"\n")
    return found.hexdigest()[:LENGTH]


def _lines(graph: GraphModule, rough: bool) -> Iterable[str]:
    places: dict[Node, str] = {}

    def entry(value: Any) -> Any:
        if isinstance(value, Node):
            return places[value]
        if rough and isinstance(value, int) and not isinstance(value, bool):
            return f"{'-' if value < 0 else ''}{abs(value).bit_length()} bits"
        return str(value) if value is not None else None

    for node in graph.graph.nodes:
        places[node] = f"%{len(places)}"
        target = str(node.target) if node.op == "call_function" else node.op
        given = map_aggregate((node.args, dict(node.kwargs)), entry)
        yield f"{target} {given} {map_aggregate(_kind(node.meta.get('val')), entry)}"


def _kind(value: Any) -> Any:
    """What is known of a value before it is computed."""
    if isinstance(value, Tensor):
        return str(value.dtype), str(value.device), tuple(value.shape), tuple(value.stride()), value.requires_grad
    if isinstance(value, tuple | list):
        return tuple(map(_kind, value))
    return type(value).__name__
