"""A joint graph by itself, and how partitioners are run on it outside of AOTAutograd."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.passes import IN_KERNELS, copy_graph
from aotkit.random import DECOMPOSED
from aotkit.torch_private.aotautograd import partitioning
from aotkit.torch_private.aotautograd_metadata import describe
from aotkit.torch_private.fake_tensors import propagate, tensor_metadata
from aotkit.torch_private.partitioners import recomputing


@dataclass(frozen=True)
class Joint:
    """A joint graph as AOTAutograd hands it to a partitioner.

    Attributes:
        inputs: (primals, tangents), fake tensors.
        keywords: `num_fwd_outputs`, and what this version of torch passes besides.
    """

    gm: GraphModule
    inputs: Any
    keywords: Mapping[str, Any]

    @property
    def num_outputs(self) -> int:
        """How many outputs of the forward graph are not saved values."""
        return int(self.keywords["num_fwd_outputs"])


def partition_copy(partition: Callable[..., Any], joint: Joint) -> tuple[GraphModule, GraphModule]:
    """Run a partitioner as AOTAutograd would, on a copy of a joint graph."""
    return partition_as_traced(partition, replace(joint, gm=copy_graph(joint.gm)))


def partition_as_traced(partition: Callable[..., Any], joint: Joint) -> tuple[GraphModule, GraphModule]:
    """Run a partitioner as AOTAutograd would, on the joint graph itself."""
    with partitioning(joint.inputs), recomputing(DECOMPOSED):
        return partition(joint.gm, joint.inputs, **joint.keywords)  # type: ignore[no-any-return]


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
    primals = len(fakes) - len(tangents_of(joint))
    _describe(joint, primals, num_fwd_outputs)
    joint_inputs = fakes[:primals], fakes[primals:]
    keywords = {"num_fwd_outputs": num_fwd_outputs, "static_lifetime_input_indices": []}
    return partition_as_traced(partition, Joint(joint, joint_inputs, keywords))


def _describe(joint: GraphModule, num_primals: int, num_fwd_outputs: int) -> None:
    """Note on the nodes, whose values are known, what tracing would have noted, too."""
    for node in joint.graph.nodes:
        if isinstance(value := node.meta.get("val"), Tensor):
            node.meta["tensor_meta"] = tensor_metadata(value)
    results: Any = joint.graph.output_node().args[0]
    if len(results) != num_fwd_outputs + num_primals:
        found = f"this one has {num_primals} primals and returns {len(results) - num_fwd_outputs} gradients"
        raise ValueError(f"A joint graph returns a gradient, or None, for each primal; {found}.")
    outputs = results[:num_fwd_outputs]
    tangents: dict[Node, int] = {}
    for node in tangents_of(joint):
        free = (i for i, result in enumerate(outputs) if i not in tangents.values() and are_alike(result, node))
        if (own := next(free, None)) is None:
            raise ValueError(f"{node.name} has the shape and dtype of no output that has no other tangent.")
        tangents[node] = own
    describe(joint, joint.graph.find_nodes(op="placeholder")[:num_primals], outputs, tangents)


def are_alike(a: Any, b: Node) -> bool:
    """Whether the values of two nodes are tensors of the same shape, dtype and device."""
    x, y = (n.meta.get("val") if isinstance(n, Node) else None for n in (a, b))
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        return False
    return (x.shape, x.dtype, x.device) == (y.shape, y.dtype, y.device)
