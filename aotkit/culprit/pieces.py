"""Pieces of a graph as graphs of their own."""

import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from aotkit.joint import JOINT_TAGS, are_alike, tangents_of
from aotkit.passes import operator_name
from aotkit.torch_private.fx import graph_module

# Operators whose results have no values yet.
_UNINITIALISED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}

Step = tuple[Node, ...]


@dataclass(frozen=True)
class Piece:
    """Part of a graph.

    Attributes:
        gm: it as a graph.
        inputs: the nodes of the graph it was taken from whose values are its inputs.
        num_fwd_outputs: how many of its outputs are no gradients, if it is a joint graph.
    """

    gm: GraphModule
    inputs: list[Node]
    num_fwd_outputs: int = 0


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


def reached(nodes: Iterable[Node], neighbours: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """These nodes, and all to which neighbours of theirs lead."""
    found = set(nodes)
    queue = list(found)
    while queue:
        new = set(neighbours(queue.pop())) - found
        found |= new
        queue += new
    return found


def piece_of(gm: GraphModule, nodes: Collection[Node], outputs: Sequence[Node | None]) -> Piece:
    """A graph of these nodes that returns `outputs`."""
    inputs = _inputs_of(gm, nodes, outputs)
    return Piece(_extract(gm, nodes, outputs, [(n, n.name) for n in inputs]), inputs)


def joint_piece(joint: GraphModule, nodes: Collection[Node], outputs: Sequence[Any]) -> Piece:
    """A joint graph of some of these nodes, which computes these outputs.

    What it reads of others is a tangent where that depends on one, else a primal; what depends on a tangent is returned
    as a gradient. A joint graph has an output for each tangent and a primal for each gradient: where the piece has none
    of that shape, another value becomes one. And it has a tangent, used or not, for each output.

    Raises:
        ValueError: there is no such value.
    """
    late = reached(tangents_of(joint), lambda n: (user for user in n.users if user.op != "output"))
    needed = reached(
        (n for n in outputs if n in nodes), lambda n: (read for read in n.all_input_nodes if read in nodes)
    )
    read = _inputs_of(joint, needed, outputs)
    results = [n for n in outputs if n not in late]
    primals = [n for n in read if n not in late]
    early = [n for n in joint.graph.nodes if n not in late]
    tangents: dict[Node, Node] = {}
    for tangent in (n for n in read if n in late):
        others = [n for n in early if n not in results]
        free = [n for n in results if n not in tangents]
        own = _like(tangent, free, [n for n in others if n in needed], set(primals) & set(others), others)
        tangents[own] = tangent
        _add(own, results)
        if own not in needed:
            _add(own, primals)
    gradients: dict[Node, Node] = {}
    for gradient in (n for n in outputs if n in late):
        free = [n for n in primals if n not in gradients]
        own = _like(gradient, free, [n for n in early if n not in primals], [gradient])
        gradients[own] = gradient
        _add(own, primals)
    differentiable = [n for n in results if n.meta["val"].dtype.is_floating_point or n.meta["val"].is_complex()]
    inputs = [(n, _prefixed("primals", n)) for n in primals]
    inputs += [(own := tangents.get(n, n), _prefixed("tangents", own)) for n in differentiable]
    gm = _extract(joint, needed, [*results, *map(gradients.get, primals)], inputs)
    return Piece(gm, [n for n, _ in inputs], len(results))


def _add(node: Node, nodes: list[Node]) -> None:
    if node not in nodes:
        nodes.append(node)


def _like(node: Node, *candidates: Iterable[Node]) -> Node:
    """The first candidate whose value has the same shape, dtype and device."""
    for candidate in itertools.chain(*candidates):
        if are_alike(candidate, node):
            return candidate
    raise ValueError(f"no value has the shape of {node.name}")


def _prefixed(prefix: str, node: Node) -> str:
    return node.name if node.name.startswith(prefix) else f"{prefix}_{node.name}"


def _inputs_of(gm: GraphModule, nodes: Collection[Node], outputs: Sequence[Node | None]) -> list[Node]:
    """The nodes outside of these, constants aside, that they or the outputs read."""
    around = [n for n in gm.graph.nodes if n not in nodes and (n in outputs or any(u in nodes for u in n.users))]
    return [n for n in around if n.op != "get_attr"]


def _extract(
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
