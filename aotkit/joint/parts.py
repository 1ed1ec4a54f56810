"""A part of a joint graph as a graph of its own, for torch's functions that split one: each node is copied once.

torch's own function copies whatever can be computed from the inputs, checks that, and removes what is not needed.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from aotkit.torch_private.partitioners import draws_matter, input_for_output, must_be_in_backward, must_be_in_forward


def each_part_once() -> Callable[..., Graph]:
    """`part_of` for the time of one split.

    torch extracts the backward part to see which saved values it reads, and once more when it knows.
    """
    known: list[tuple[Any, Graph]] = []

    def extract(
        joint: Graph,
        inputs: Sequence[Node],
        outputs: Sequence[Any],
        outputs_descs: Sequence[Any],
        *options: Any,
        **more: Any,
    ) -> Graph:
        asked = joint, list(inputs), list(outputs), options, more
        for i, (before, part) in enumerate(known):
            if before == asked:
                del known[i]
                return part
        known.append((asked, part_of(joint, inputs, outputs, outputs_descs, *options, **more)))
        return known[-1][1]

    return extract


def part_of(
    joint: Graph,
    inputs: Sequence[Node],
    outputs: Sequence[Any],
    outputs_descs: Sequence[Any],
    subgraph: str | None = None,
    ignore_must_be_in_fw_bw: bool = False,
) -> Graph:
    """What computes some outputs from some inputs, in the order of the joint graph, with all effects on that side.

    Args:
        inputs: nodes of any kind: placeholders of the part, in this order.
        outputs: nodes and constants.
        outputs_descs: what each output is.
        subgraph: "forward" or "backward": what changes tensors in place on the other side is left out.
        ignore_must_be_in_fw_bw: whether nothing is.
    """
    nodes, results = _contents(joint, inputs, outputs, subgraph, ignore_must_be_in_fw_bw)
    part = Graph()
    copies: dict[Node, Node] = {}
    for node in inputs:
        copies[node] = part.placeholder(node.name)
        copies[node].meta = dict(node.meta)  # of its own: an input may be on another device in one part
    for node in nodes:
        copies[node] = copy_node(node, part, copies)
    returned = [copies[x] if isinstance(x, Node) else x for x in results]
    output = part.output(tuple(returned))
    output.meta["desc"] = outputs_descs
    output.meta["output_stack_traces"] = [x.meta.get("stack_trace") if isinstance(x, Node) else None for x in returned]
    return part


def nodes_of_part(
    joint: Graph,
    inputs: Sequence[Node],
    outputs: Sequence[Any],
    outputs_descs: Sequence[Any],
    subgraph: str | None = None,
) -> Any:
    """The joint graph's own nodes that would be in the part, for a caller that only wants to know their names."""
    nodes, _ = _contents(joint, inputs, outputs, subgraph, False)
    return SimpleNamespace(nodes=[*inputs, *nodes])


def _contents(
    joint: Graph, inputs: Sequence[Node], outputs: Sequence[Any], subgraph: str | None, anywhere: bool
) -> tuple[list[Node], list[Any]]:
    """The operations of a part, and what it returns."""
    computable = set(inputs)
    for node in joint.nodes:
        is_called = node.op in ("call_function", "get_attr") and computable.issuperset(node.all_input_nodes)
        if is_called and (anywhere or not _is_elsewhere(node, subgraph)):
            computable.add(node)
    results = [_result(x, computable) if isinstance(x, Node) else x for x in outputs]
    return needed(joint, computable.difference(inputs), results), results


def copy_node(node: Node, graph: Graph, copies: dict[Node, Node]) -> Node:
    """Append a copy to a graph that has copies of what it reads; `Graph.node_copy` takes twice as long.

    That looks for symbolic numbers in the arguments, and tells the graph of the new attribute `meta`.
    """
    copy = graph.create_node(node.op, node.target, name=node.name, type_expr=node.type)
    if node.args:
        copy.args = map_arg(node.args, copies.__getitem__)
    if node.kwargs:
        copy.kwargs = map_arg(node.kwargs, copies.__getitem__)
    copy.meta.update(node.meta)
    return copy


def _is_elsewhere(node: Node, side: str | None) -> bool:
    """Whether a node has to run on another side than this one."""
    return (side != "backward" and must_be_in_backward(node)) or (side != "forward" and must_be_in_forward(node))


def _result(node: Node, computable: set[Node]) -> Node:
    """The output, or the input of the function that the backward pass changes in place and that it is a name for."""
    if node in computable:
        return node
    is_written_late = node.target is torch.ops.aten.copy_.default and must_be_in_backward(node)
    if is_written_late and node.args[0] in computable:
        return node.args[0]  # type: ignore[return-value]
    found = input_for_output(node, {known: known for known in computable})
    if found is None:
        raise AssertionError(f"{node} is an output, and cannot be computed from the inputs of its part")
    return found


def needed(graph: Graph, nodes: Collection[Node] | None = None, results: Iterable[Any] = ()) -> list[Node]:
    """In order, what results are computed from and what has effects: all but dead code.

    Args:
        nodes: only of these.
    """
    has_effect = draws_matter()
    read = {x for x in results if isinstance(x, Node)}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if (nodes is None or node in nodes) and (node in read or node.is_impure(has_effect)):
            kept.append(node)
            read.update(node.all_input_nodes)
    return kept[::-1]
