"""Pieces of a joint graph as joint graphs of their own."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from torch.fx import GraphModule, Node

from aotkit.culprit.subgraphs import extract, inputs_of
from aotkit.joint import are_alike, tangents_of


@dataclass(frozen=True)
class JointPiece:
    """A joint graph.

    Attributes:
        gm: the graph.
        inputs: the nodes of the graph it was taken from whose values are its inputs.
        num_fwd_outputs: how many of its outputs are no gradients.
    """

    gm: GraphModule
    inputs: list[Node]
    num_fwd_outputs: int


def joint_piece(joint: GraphModule, nodes: Collection[Node], outputs: Sequence[Node]) -> JointPiece | None:
    """A joint graph of some of these nodes, which computes these outputs; None if there is none.

    What it reads of others is a tangent where that depends on one, else a primal; what depends on a tangent is returned
    as a gradient. A joint graph has an output for each tangent and a primal for each gradient: where the piece has none
    of that shape, another value becomes one. And it has a tangent, used or not, for each output.
    """
    late = _dependents(tangents_of(joint))
    nodes = _needed(outputs, nodes)
    read = inputs_of(joint, nodes, outputs)
    results = [n for n in outputs if n not in late]
    primals = [n for n in read if n not in late]
    early = [n for n in joint.graph.nodes if n not in late]
    tangents: dict[Node, Node] = {}
    for tangent in (n for n in read if n in late):
        others = [n for n in early if n not in results]
        free = [n for n in results if n not in tangents]
        if (own := _like(tangent, free, [n for n in others if n in nodes], set(primals) & set(others), others)) is None:
            return None
        tangents[own] = tangent
        _add(own, results)
        if own not in nodes:
            _add(own, primals)
    gradients: dict[Node, Node] = {}
    for gradient in (n for n in outputs if n in late):
        free = [n for n in primals if n not in gradients]
        if (own := _like(gradient, free, [n for n in early if n not in primals], [gradient])) is None:
            return None
        gradients[own] = gradient
        _add(own, primals)
    differentiable = [n for n in results if n.meta["val"].dtype.is_floating_point or n.meta["val"].is_complex()]
    inputs = [(n, _prefixed("primals", n)) for n in primals]
    inputs += [(own := tangents.get(n, n), _prefixed("tangents", own)) for n in differentiable]
    gm = extract(joint, nodes, [*results, *map(gradients.get, primals)], inputs)
    return JointPiece(gm, [n for n, _ in inputs], len(results))


def _add(node: Node, nodes: list[Node]) -> None:
    if node not in nodes:
        nodes.append(node)


def _like(node: Node, *candidates: Iterable[Node]) -> Node | None:
    """The first candidate whose value has the same shape, dtype and device."""
    return next((c for some in candidates for c in some if are_alike(c, node)), None)


def _prefixed(prefix: str, node: Node) -> str:
    return node.name if node.name.startswith(prefix) else f"{prefix}_{node.name}"


def _dependents(nodes: Iterable[Node]) -> set[Node]:
    """These nodes, and all that depends on them."""
    found = set(nodes)
    queue = list(found)
    while queue:
        new = {user for user in queue.pop().users if user.op != "output"} - found
        found |= new
        queue += new
    return found


def _needed(outputs: Iterable[Node], nodes: Collection[Node]) -> set[Node]:
    """Those of these nodes on which the outputs depend."""
    found = {n for n in outputs if n in nodes}
    queue = list(found)
    while queue:
        new = {n for n in queue.pop().all_input_nodes if n in nodes} - found
        found |= new
        queue += new
    return found
