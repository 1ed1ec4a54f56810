"""Partition one joint graph outside of AOTAutograd, with what partitioners read besides the graph itself."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.aot.alone import propagate
from aotkit.aot.capture import Joint, partition_as_traced
from aotkit.aot.graphs import IN_KERNELS

# What tracing notes on the nodes of a joint graph that nothing else tells: the pass in which each ran, and what
# torch.utils.checkpoint asked for.
JOINT_TAGS = ("partitioner_tag", "recompute", "ac_graph_id", "has_backward_hook", IN_KERNELS)


def tangents_of(joint: GraphModule) -> list[Node]:
    """The inputs of a joint graph that are tangents; partitioners know them by name."""
    return [n for n in joint.graph.find_nodes(op="placeholder") if "tangents" in str(n.target)]


def partition_alone(
    partition: Callable[..., Any], joint: GraphModule, inputs: Sequence[Tensor], num_fwd_outputs: int
) -> tuple[GraphModule, GraphModule]:
    """Hand `joint` to a partitioner as AOTAutograd would; it may have been rebuilt from source.

    Args:
        inputs: real tensors like those that the graph is to run on: primals, then tangents.

    Raises:
        ValueError: it is no joint graph: there is not one gradient or None for each primal, or a tangent has the shape
            and dtype of no output.
    """
    _, fakes = propagate(joint, inputs)
    tangents = len(tangents_of(joint))
    _describe(joint, len(fakes) - tangents, num_fwd_outputs)
    joint_inputs = fakes[: len(fakes) - tangents], fakes[len(fakes) - tangents :]
    keywords = {"num_fwd_outputs": num_fwd_outputs, "static_lifetime_input_indices": []}
    return partition_as_traced(partition, Joint(joint, joint_inputs, keywords))


def _describe(joint: GraphModule, num_primals: int, num_fwd_outputs: int) -> None:
    """Note on the nodes, whose values are known, what tracing would have noted, too."""
    from torch._functorch._aot_autograd import descriptors
    from torch._subclasses.fake_tensor import extract_tensor_metadata

    for node in joint.graph.nodes:
        if isinstance(value := node.meta.get("val"), Tensor):
            node.meta["tensor_meta"] = extract_tensor_metadata(value)
    output = joint.graph.output_node()
    results: Any = output.args[0]
    if len(results) != num_fwd_outputs + num_primals:
        found = f"this one has {num_primals} primals and returns {len(results) - num_fwd_outputs} gradients"
        raise ValueError(f"A joint graph returns a gradient, or None, for each primal; {found}.")
    primals = [descriptors.PlainAOTInput(i) for i in range(num_primals)]
    outputs = [descriptors.PlainAOTOutput(i) for i in range(num_fwd_outputs)]
    output.meta["desc"] = [*outputs, *map(descriptors.GradAOTOutput, primals)]
    placeholders = joint.graph.find_nodes(op="placeholder")
    for node, primal in zip(placeholders, primals, strict=False):
        node.meta.update(desc=primal, partitioner_tag="is_forward")
    free = dict(zip(outputs, results, strict=False))
    for node in tangents_of(joint):
        own = next((o for o, result in free.items() if are_alike(result, node)), None)
        if own is None:
            raise ValueError(f"{node.name} has the shape and dtype of no output that has no other tangent.")
        del free[own]
        node.meta.update(desc=descriptors.TangentAOTInput(own), partitioner_tag="is_backward")


def are_alike(a: Any, b: Node) -> bool:
    """Whether the values of two nodes are tensors of the same shape, dtype and device."""
    x, y = (n.meta.get("val") if isinstance(n, Node) else None for n in (a, b))
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        return False
    return (x.shape, x.dtype, x.device) == (y.shape, y.dtype, y.device)
