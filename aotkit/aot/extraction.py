"""Split a joint graph where a partitioner says."""

from collections.abc import Sequence
from operator import getitem

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _use_lazy_graph_module

from aotkit.aot.graphs import is_symbol
from aotkit.aot.partition import draw_once
from aotkit.aot.parts import copied_once, partitioners


def extract_forward_backward(
    joint: GraphModule, saved: Sequence[Node], *, num_fwd_outputs: int
) -> tuple[GraphModule, GraphModule]:
    """Split a joint graph into (forward, backward), where forward also returns the `saved` nodes.

    The backward graph recomputes whatever else it needs, each value just before its first use. Neither has code yet.
    """
    symbols = [node for node in saved if is_symbol(node)]
    is_opaque = getattr(partitioners, "is_opaque_node", None)  # torch 2.13
    opaque = [node for node in saved if is_opaque and is_opaque(node)]
    values = [node for node in saved if node not in symbols and node not in opaque]
    with copied_once(), _use_lazy_graph_module(True):  # torch generates code after each of its passes
        forward, backward = partitioners._extract_fwd_bwd_modules(
            joint,
            values,
            saved_sym_nodes=symbols,
            num_fwd_outputs=num_fwd_outputs,
            **({"saved_opaque_nodes": opaque} if is_opaque else {}),
        )
    if partitioners.has_recomputable_rng_ops(joint):
        forward, backward = partitioners.functionalize_rng_ops(joint, forward, backward, len(symbols))
    _recompute_late(backward.graph)
    for gm in (forward, backward):
        _raise_items(gm.graph)
    forward = partitioners.thread_graphsafe_rng_from_hops(forward, is_backward=False)
    backward = partitioners.thread_graphsafe_rng_from_hops(backward, is_backward=True)
    return draw_once(forward, backward)


def _recompute_late(backward: Graph) -> None:
    """Move what does not depend on a tangent right before the first gradient that needs it; remove what none needs.

    As torch's `reordering_to_mimic_autograd_engine` has it, which makes another graph.
    """
    nodes = list(backward.nodes)
    turns = {node: turn for turn, node in enumerate(nodes)}
    tangents = [node for node in nodes if partitioners._is_tangent(node)]
    first = min((turns[user] for tangent in tangents for user in tangent.users), default=None)
    if first is None:
        return
    order = dict.fromkeys(node for node in nodes if node.op == "placeholder")
    writes = [node for node in nodes[:first] if node.target is torch.ops.aten.copy_.default]
    for needed in (*writes, *nodes[first:]):
        missing, queue = set[Node](), [needed]
        while queue:
            if (node := queue.pop()) not in missing and node not in order:
                missing.add(node)
                queue += node.all_input_nodes
        order.update(dict.fromkeys(sorted(missing, key=turns.__getitem__)))
    for node in reversed(nodes):
        if node not in order:
            backward.erase_node(node)
    output = backward.output_node()
    for node in order:
        if node is not output:
            output.prepend(node)


def _raise_items(graph: Graph) -> None:
    """Move the items of a tuple right after it, as torch's `raise_getitems` does, which generates code."""
    for node in reversed(graph.find_nodes(op="call_function", target=getitem)):
        node.args[0].append(node)
