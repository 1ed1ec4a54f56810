"""Merge the nodes of a graph that compute the same, as torch's `fx_graph_cse` does, which copies the graph.

That also takes 0.0 and -0.0 for the same number.
"""

from collections.abc import Callable, Collection, Hashable
from typing import Any

import torch
from torch.fx import Graph, Node

from aotkit.passes import communicates, storage_of
from aotkit.torch_private.partitioners import changes_in_place, is_unique


def merge_equal_nodes(
    graph: Graph, apart: Collection[Node], kind: Callable[[Node], Hashable] = lambda node: None
) -> None:
    """Have the readers of the later ones of equal nodes read the first, in place, and erase these.

    Nodes are equal if they apply the same operator to the same arguments, and nothing in between changes a tensor in
    place. What is returned keeps memory of its own; what processes do together is done as often as it was asked for.

    Args:
        apart: nodes that equal no others.
        kind: nodes of which it is not the same are not equal.
    """
    returned = {storage_of(i) for i in graph.output_node().all_input_nodes} - {None}
    known: dict[Hashable, Node] = {}
    changes = 0
    for node in graph.nodes:
        changes += changes_in_place(node)
        is_alone = node.op != "call_function" or node in apart or communicates(node) or is_unique(node)
        key = None if is_alone or storage_of(node) in returned else _key(node, changes)
        if key is None:
            continue
        first = known.setdefault((key, kind(node)), node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def _key(node: Node, changes: int) -> Hashable:
    """The same for nodes that are equal; None: it cannot be compared."""

    def of(value: Any) -> Hashable:
        if isinstance(value, tuple | list):
            return type(value), *map(of, value)
        if isinstance(value, dict):
            return dict, *((name, of(v)) for name, v in value.items())
        if isinstance(value, float | complex):
            return type(value), repr(value)
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return type(value), value.node
        return type(value), value

    key = node.target, changes, of(node.args), of(node.kwargs)
    try:
        hash(key)
    except TypeError:
        return None
    return key
