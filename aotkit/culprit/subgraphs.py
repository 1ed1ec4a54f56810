"""Pieces of a graph as graphs of their own."""

import operator
from collections.abc import Collection, Iterable, Sequence

from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from aotkit.aot import JOINT_TAGS, graph_module
from aotkit.inspection import operator_name

# Operators whose results have no values yet.
_UNINITIALISED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}

Step = tuple[Node, ...]


def steps_of(gm: GraphModule) -> list[Step]:
    """The operations of a graph in order, each together with the nodes that pick one of its several results."""
    return [
        (node, *(user for user in node.users if user.target is operator.getitem))
        for node in gm.graph.nodes
        if node.op == "call_function" and node.target is not operator.getitem
    ]


def nodes_of(steps: Sequence[Step]) -> set[Node]:
    """The nodes of several steps."""
    return {node for step in steps for node in step}


def live_values(gm: GraphModule, nodes: Collection[Node]) -> list[Node]:
    """The tensors among these nodes that are used outside of them."""
    return [n for n in gm.graph.nodes if n in nodes and _has_value(n) and any(u not in nodes for u in n.users)]


def _has_value(node: Node) -> bool:
    return isinstance(node.meta.get("val"), Tensor) and operator_name(node) not in _UNINITIALISED


def inputs_of(gm: GraphModule, nodes: Collection[Node], outputs: Sequence[Node]) -> list[Node]:
    """The nodes outside of these, constants aside, that they or the outputs read."""
    around = [n for n in gm.graph.nodes if n not in nodes and (n in outputs or any(u in nodes for u in n.users))]
    return [n for n in around if n.op != "get_attr"]


def extract(
    gm: GraphModule, nodes: Collection[Node], outputs: Sequence[Node | None], inputs: Iterable[tuple[Node, str]]
) -> GraphModule:
    """A graph of these nodes that returns `outputs`.

    Names, source lines and the tags of a joint graph stay. Constants are its own.

    Args:
        inputs: the nodes whose values it takes, and what it calls them; what comes twice is read from the first.
    """
    graph, copies = Graph(), dict[Node, Node]()
    for node, name in inputs:
        copies.setdefault(node, graph.create_node("placeholder", name, name=name))
    for node in gm.graph.nodes:
        is_constant = node.op == "get_attr" and (node in outputs or any(u in nodes for u in node.users))
        if node in nodes or is_constant:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].meta = {k: v for k, v in node.meta.items() if k in ("stack_trace", "val", *JOINT_TAGS)}
    graph.output(tuple(None if n is None else copies[n] for n in outputs))
    return graph_module(gm, graph)
