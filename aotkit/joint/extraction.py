"""Split a joint graph where a partitioner says."""

from collections.abc import Sequence
from operator import getitem

import torch
from torch.fx import Graph, GraphModule, Node

from aotkit.joint.parts import each_part_once
from aotkit.joint.torch_partitioners import draw_once
from aotkit.passes import is_symbol
from aotkit.torch_private.partitioners import is_tangent, replay_draws, split_modules, thread_generators


def extract_forward_backward(
    joint: GraphModule, saved: Sequence[Node], *, num_fwd_outputs: int
) -> tuple[GraphModule, GraphModule]:
    """Split a joint graph into (forward, backward), where forward also returns the `saved` nodes.

    The backward graph recomputes whatever else it needs, each value just before its first use. Neither has code yet.
    """
    symbols = [node for node in saved if is_symbol(node)]
    values = [node for node in saved if node not in symbols]
    forward, backward = split_modules(joint, values, symbols, num_fwd_outputs, each_part_once())
    forward, backward = replay_draws(joint, forward, backward, len(symbols))
    _recompute_late(backward.graph)
    for gm in (forward, backward):
        _raise_items(gm.graph)
    forward = thread_generators(forward, is_backward=False)
    backward = thread_generators(backward, is_backward=True)
    return draw_once(forward, backward)


def _recompute_late(backward: Graph) -> None:
    """Move what does not depend on a tangent right before the first gradient that needs it; remove what none needs.

    As torch's `reordering_to_mimic_autograd_engine` has it, which makes another graph.
    """
    nodes = list(backward.nodes)
    turns = {node: turn for turn, node in enumerate(nodes)}
    tangents = [node for node in nodes if is_tangent(node)]
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
