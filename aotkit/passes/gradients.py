"""The gradients of a backward graph: what they depend on, and whose memory they are."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.passes.graphs import copied
from aotkit.passes.nodes import is_pointwise, storage_of
from aotkit.torch_private.aotautograd_metadata import leaf_inputs
from aotkit.torch_private.dispatch import tree_leaves
from aotkit.torch_private.fx import renew_code


def gradient_uses(joint: GraphModule, num_fwd_outputs: int) -> list[frozenset[int]]:
    """For each gradient that a joint graph computes, the numbers of the tangents that it depends on.

    Open sizes among the inputs have none: to autograd they are no inputs.
    """
    placeholders = joint.graph.find_nodes(op="placeholder")
    incoming = [n for n in placeholders if "tangents" in n.name]
    tangents = [n for n in incoming if "tangents_token" not in n.name]  # these order effects, and come last
    reached: dict[Any, frozenset[int]] = {n: frozenset((i,)) for i, n in enumerate(tangents)}
    for node in joint.graph.nodes:
        if node.op not in ("placeholder", "output"):
            found = [reached.get(n, frozenset()) for n in node.all_input_nodes]
            # A constant in a sum of gradients is the gradient of something too; of what cannot be seen any more.
            is_sum = node.target is torch.ops.aten.add.Tensor and any(found) and not all(found)
            reached[node] = frozenset(range(len(tangents))) if is_sum else frozenset().union(*found)
    results = tree_leaves(joint.graph.output_node().args[0], is_leaf=lambda x: x is None)
    gradients = results[num_fwd_outputs : len(results) - (len(incoming) - len(tangents))]
    # Tokens that order effects come before the inputs proper.
    primals = [n for n in placeholders if n not in incoming][-len(gradients) :]
    return [
        reached.get(gradient, frozenset())
        for primal, gradient in zip(primals, gradients, strict=True)
        if isinstance(primal.meta.get("val"), Tensor)
    ]


def separate_gradients(backward: GraphModule) -> None:
    """Copy gradients that are another view of the memory of an earlier one.

    The engine makes a gradient that nothing else refers to the leaf's `.grad`. Of two views of one memory it would do
    so with both, and whoever scales one `.grad` in place would scale the other too.
    """
    owners: dict[int | None, Any] = {}
    _replace_gradients(backward, lambda i, node: owners.setdefault(storage_of(node), node) is not node)


def copy_repeated_gradients(backward: GraphModule) -> None:
    """Copy what a pointwise operator computes as the gradient of several leaves; before Inductor compiles the graph.

    The engine would do that, in a pass over memory; Inductor stores the value several times while it has it in
    registers. That is for nothing where `.grad` exists already, or under `torch.autograd.grad`: hence leaves only.
    """
    leaves, used = leaf_inputs(), set()
    origins: dict[int | None, Node] = {}
    for node in backward.graph.nodes:
        origins.setdefault(storage_of(node), node)

    def is_repeated(i: int, node: Node) -> bool:
        repeated = node in used and is_pointwise(origins[storage_of(node)])
        used.add(node)
        return repeated and i in leaves

    _replace_gradients(backward, is_repeated)


def _replace_gradients(backward: GraphModule, is_to_copy: Callable[[int, Node], bool]) -> None:
    output = backward.graph.output_node()
    gradients: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    for i, node in enumerate(gradients):
        if storage_of(node) is not None and is_to_copy(i, node):
            gradients[i] = copied(node, output)
    output.args = (tuple(gradients),)
    renew_code(backward)
