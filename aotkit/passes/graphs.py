"""What a graph as a whole has in it; copies of it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from aotkit.errors import TraceError
from aotkit.passes.new_storages import replaced_inputs
from aotkit.passes.nodes import KNOWN, size_hint
from aotkit.torch_private.dispatch import tree_leaves
from aotkit.torch_private.fx import graph_module


def copy_graph(gm: GraphModule) -> GraphModule:
    """A copy that shares constants and fake tensors with the original."""
    graph = Graph()
    output = graph.output(graph.graph_copy(gm.graph, {}))
    output.meta = dict(gm.graph.output_node().meta)
    return graph_module(gm, graph)


def effect_tokens(gm: GraphModule) -> int:
    """How many tokens, which order effects, a graph makes itself: in the joint graph they are inputs and outputs."""
    return len(gm.graph.find_nodes(op="call_function", target=torch.ops.prims._make_token.default))


class HasNoGraph(TraceError):
    """What no graph can stand for, however it is captured: it has to run eagerly."""


def refuse_sparse(gm: GraphModule) -> None:
    """Raise a HasNoGraph if a graph has a tensor of another layout than strided."""
    values = {node.name: node.meta.get("val") for node in gm.graph.nodes}
    if found := [n for n, v in values.items() if isinstance(v, Tensor) and v.layout is not torch.strided]:
        raise HasNoGraph(
            f"it computes sparse tensors ({', '.join(found[:3])}), whose gradients AOTAutograd loses: compile the part "
            "without them"
        )


def generators_of(gm: GraphModule, known: Sequence[Any] = ()) -> list[torch.Generator]:
    """The random generators that a graph holds as constants, in a node's arguments or as an attribute.

    Args:
        known: generators that do not count.
    """
    held: list[Any] = [a for node in gm.graph.nodes for a in (*node.args, *node.kwargs.values())]
    held += [getattr(gm, str(node.target), None) for node in gm.graph.find_nodes(op="get_attr")]
    # Python may have several objects for one generator.
    found: list[Any] = [a for a in held if isinstance(a, torch.Generator)]
    return list({g._cdata: g for g in found if g._cdata not in {k._cdata for k in known}}.values())


def has_sizes_of_data(gm: GraphModule | None) -> bool:
    """Whether the values of tensors decide sizes in a graph."""
    values = [v for node in (gm.graph.nodes if gm else ()) for v in tree_leaves(node.meta.get("val"))]
    sizes = [n for v in values for n in (v.shape if isinstance(v, Tensor) else (v,))]
    return any(isinstance(n, torch.SymInt) and size_hint(n) is None for n in sizes)


def has_torch_operators(gm: GraphModule) -> bool:
    """Whether all that a graph calls computes tensors from tensors, and is torch's own or aotkit's."""
    targets = [n.target for n in gm.graph.nodes if n.op == "call_function"]
    return all(getattr(t, "namespace", "builtin") in (*KNOWN, "builtin") for t in targets)


def mutated_inputs(graph: Graph) -> set[Any]:
    """The placeholders whose tensors the graph's function changes in place: it returns their values, or writes them."""
    descriptions = tree_leaves(graph.output_node().meta.get("desc", ()))
    changed = [getattr(description, "mutated_input", None) for description in descriptions]
    inputs = graph.find_nodes(op="placeholder")
    returned = {node for node in inputs if any(node.meta.get("desc") == c for c in changed if c is not None)}
    written = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    return returned | {node.args[0] for node in written} | replaced_inputs(graph).keys()


def copied(node: Node, before: Node) -> Node:
    """A new node, before another one, that copies the value of a node."""
    with before.graph.inserting_before(before):
        copied = before.graph.call_function(torch.ops.aten.clone.default, (node,))
    # A value in memory of its own, by which passes tell copies from aliases.
    copied.meta = {**node.meta, "val": node.meta["val"].clone()}
    return copied


def placeholders(gm: GraphModule | None) -> list[Node]:
    """What the graph takes; nothing where there is no graph."""
    return list(gm.graph.find_nodes(op="placeholder")) if gm is not None else []


def results_of(gm: GraphModule) -> Sequence[Any]:
    """What the graph returns: nodes and constants."""
    return gm.graph.output_node().args[0]  # type: ignore[return-value]


def output_nodes(gm: GraphModule) -> list[Node | None]:
    """What the graph returns, one entry per output; None for an output that is a constant or missing gradient."""
    (returned,) = gm.graph.output_node().args
    values = returned if isinstance(returned, (list, tuple)) else [returned]
    return [value if isinstance(value, Node) else None for value in values]
