"""The values of a joint graph that can be saved or recomputed, and what about them costs something."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch.fx import GraphModule, Node

from aotkit.aot.graphs import is_symbol
from aotkit.aot.partition import (
    Sides,
    is_in_kernels,
    is_random,
    is_tensor,
    is_view,
    must_recompute,
    must_save,
    storages,
)
from aotkit.inspection import producer
from aotkit.partitioners.rematerialization.operators import is_free


@dataclass
class Values:
    """The nodes that do not depend on a tangent, in graph order. All lists have one entry for each.

    Attributes:
        nodes: the nodes.
        inputs: the numbers of those that each is computed from.
        needed: the numbers of those that the backward pass reads.
        kept: how many more bytes live until the backward pass if it is saved; None: it cannot be.
        repeatable: whether it is the same when it is computed in the backward pass.
        constant: whether it depends on no input's data, such as a causal mask.
        in_forward: whether the forward pass computes it in any case.
        asked_for: whether `torch.utils.checkpoint` asked to recompute it.
        memories: `storages` of each node of the joint graph, gradients among them.
    """

    nodes: list[Node]
    inputs: list[list[int]]
    needed: list[int]
    kept: list[int | None]
    repeatable: list[bool]
    constant: list[bool]
    in_forward: list[bool]
    asked_for: list[bool]
    memories: dict[Node, dict[Any, int]]

    def nbytes(self, node: Node) -> int:
        """The memory of a node's tensors."""
        return sum(self.memories[node].values())

    @cached_property
    def free(self) -> set[Node]:
        """The nodes of the joint graph that move no data."""
        return {node for node in self.memories if is_free(node, self.memories.__getitem__)}


def values_of(joint: GraphModule, sides: Sides) -> Values:
    """All of them."""
    nodes = [node for node in joint.graph.nodes if node.op != "output" and node not in sides.backward]
    number = {node: i for i, node in enumerate(nodes)}
    memories = {node: storages(node) for node in joint.graph.nodes}
    alive = {storage for node in (*sides.inputs, *sides.outputs) for storage in memories[node]}
    repeatable = [why_once(node) is None for node in nodes]
    inputs = [[number[i] for i in node.all_input_nodes] for node in nodes]
    constant: list[bool] = []
    for node, read in zip(nodes, inputs, strict=True):
        constant.append(node.op != "placeholder" and all(constant[i] or is_symbol(nodes[i]) for i in read))
    return Values(
        nodes,
        inputs,
        [number[node] for node in sides.needed],
        [_bytes_kept(node, memories, alive, again) for node, again in zip(nodes, repeatable, strict=True)],
        repeatable,
        constant,
        [producer(node) in sides.forward for node in nodes],
        [must_recompute(node) for node in nodes],
        memories,
    )


def bytes_of(node: Node) -> int:
    """The memory of a node's tensors."""
    return sum(storages(node).values())


def _bytes_kept(
    node: Node, memories: Mapping[Node, Mapping[Any, int]], alive: set[Any], repeatable: bool
) -> int | None:
    if not is_tensor(node):
        # Sizes and opaque inputs travel for free; a tuple cannot be saved, its items can.
        return 0 if is_symbol(node) or node.op == "placeholder" else None
    if repeatable and (is_view(node, memories.__getitem__) or node.op == "get_attr" or is_in_kernels(node)):
        return None
    return sum(size for storage, size in memories[node].items() if storage not in alive)


def why_once(node: Node) -> str | None:
    """Why a value cannot be computed a second time, in the backward pass; None: it can."""
    if node.op == "get_attr":
        return None
    if node.op != "call_function":
        return "input"
    if node.is_impure(impure_random=False):
        return "side effect"
    if is_symbol(node) and any(is_tensor(i) for i in node.all_input_nodes):
        return "size of a tensor"  # saved itself, rather than the tensor that it can be read from
    if must_recompute(node):
        return None  # a random draw too: torch then replays the state of its generator
    if must_save(node):
        return str(node.meta.get("saved_because", "tagged by torch.utils.checkpoint"))
    return "random" if is_random(node) else None
