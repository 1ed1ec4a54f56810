"""On which side of the cut the nodes of a joint graph can be."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch.fx import Graph, GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from aotkit.joint.equal_nodes import merge_equal_nodes
from aotkit.joint.parts import needed, nodes_of_part
from aotkit.passes import is_random, is_symbol, is_tensor, is_view, must_save, mutated_inputs
from aotkit.torch_private.dispatch import tree_leaves
from aotkit.torch_private.partitioners import (
    FORCED,
    classified,
    complete_checkpoint_tags,
    is_of_backward,
    must_recompute,
    tag_forced,
)


@dataclass(frozen=True)
class Sides:
    """What a joint graph leaves a partitioner to decide.

    Attributes:
        inputs: placeholders of the forward graph.
        outputs: nodes that the forward graph returns to the caller.
        forward: nodes that the forward graph runs in any case, as its outputs depend on them.
        backward: nodes that can only run in the backward graph, because they depend on a tangent.
        needed: nodes outside `backward` that it reads, in graph order: to be saved, or recomputed from what is.
    """

    inputs: list[Node]
    outputs: list[Node]
    forward: set[Node]
    backward: set[Node]
    needed: list[Node]


def simplify(joint: GraphModule) -> None:
    """Remove dead code and merge equal nodes, in place; and complete the tags of `torch.utils.checkpoint`.

    The module keeps its old code.
    """
    graph = joint.graph
    is_needed = set(needed(graph))
    for node in reversed(graph.nodes):
        if node not in is_needed:
            graph.erase_node(node)
    merge_equal_nodes(graph, apart=_large_constants(graph.nodes).union(filter(is_random, graph.nodes)))
    complete_checkpoint_tags(joint)
    _force(joint)
    keep_readers_of_mutated_inputs(joint.graph)


def _force(joint: GraphModule) -> None:
    """Let torch's functions tag what has to be saved, and leave the reason on that."""
    forced = set(filter(must_save, joint.graph.nodes))
    for how, reason in FORCED.items():
        tag_forced(joint, how)
        for node in joint.graph.nodes:
            if must_save(node) and node not in forced:
                forced.add(node)
                node.meta["saved_because"] = reason


def keep_readers_of_mutated_inputs(graph: Graph) -> None:
    """What reads an input that the function changes in place cannot run later, when the input has its new value."""
    mutated = mutated_inputs(graph)
    if not mutated:
        return
    for node in graph.nodes:
        if node.op == "call_function" and any(i in mutated for i in node.all_input_nodes) and not must_recompute(node):
            if is_view(node):
                mutated.add(node)
            elif not is_symbol(node):
                reason = "reads an input changed in place"
                node.meta.update(recompute=CheckpointPolicy.MUST_SAVE, saved_because=reason)


def _large_constants(nodes: Iterable[Node]) -> set[Node]:
    """Tensors that no input's data decide, such as the numbers of the elements from which random bits are made.

    Computing one again in each kernel that reads it is free; one that several layers share is read from memory.
    """
    found: set[Node] = set()
    for node in nodes:
        tensors = [i for i in node.all_input_nodes if not is_symbol(i)]
        if node.op == "call_function" and is_tensor(node) and node.meta["val"].dim() and found.issuperset(tensors):
            found.add(node)
    return found


def classify(joint: GraphModule, num_fwd_outputs: int) -> Sides:
    """Sort the nodes of a joint graph by the side of the cut that they can be on."""
    info = classified(joint, num_fwd_outputs, nodes_of_part)
    own_draws_of_backward(joint.graph, info)
    leaves: list[Any] = tree_leaves(joint.graph.output_node().args)
    backward = set(info.tangents_closure)
    for node in joint.graph.nodes:
        if node.op == "placeholder" and node not in info.inputs:
            backward.add(node)
    read = {node for b in backward if b.op != "output" for node in b.all_input_nodes}
    read.update(leaf for leaf in leaves[num_fwd_outputs:] if isinstance(leaf, Node))
    return Sides(
        inputs=info.inputs,
        outputs=[leaf for leaf in leaves[:num_fwd_outputs] if isinstance(leaf, Node)],
        forward=set(info._required_fw_nodes),
        backward=backward,
        needed=[node for node in joint.graph.nodes if node in read and node not in backward],
    )


def own_draws_of_backward(graph: Graph, info: Any) -> None:
    """Draws of the backward pass (noise on gradients) happen there, so nothing that depends on them can be saved."""
    late: set[Node] = set()
    for node in graph.nodes:
        starts = is_random(node) and is_of_backward(node)
        if node.op != "output" and (starts or any(i in late for i in node.all_input_nodes)):
            late.add(node)
            info._required_fw_nodes.discard(node)  # torch counts dead code that draws among these
            info.required_bw_nodes.add(node)
            info.tangents_closure.add(node)
