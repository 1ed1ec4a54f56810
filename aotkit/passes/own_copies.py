"""Clones that a function makes of its inputs: what becomes of the inputs after the call is no matter to them.

`x @ queue.clone()` reads a queue that is updated before the backward pass runs, as in MoCo. PyTorch's minimum cut
copies it anew in the backward pass, and Inductor's passes read the queue itself; autograd then raises, though eager is
right. So such a copy is made once, and saved where the backward pass needs it. Of inputs without gradients all that
eager does not keep is safe (`changing_inputs`); these copies are of any input.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from aotkit.passes.nodes import storage_of

aten, prims = torch.ops.aten, torch.ops.prims


def keep_copies(joint: GraphModule) -> None:
    """Let no partitioner make copies of inputs again, unless `torch.utils.checkpoint` asked for that."""
    _clone_what_keeps_type(joint)
    for node in _copies_of_inputs(joint):
        if "recompute" not in node.meta:
            node.meta.update(recompute=CheckpointPolicy.MUST_SAVE, saved_because="copy of an input")


@contextmanager
def hidden_copies(joint: GraphModule) -> Iterator[None]:
    """While Inductor's passes run, which take the input itself where they know an operator to copy it."""
    for node in _copies_of_inputs(joint):
        if node.meta.get("recompute") is CheckpointPolicy.MUST_SAVE:
            node.target = prims.clone.default
    try:
        yield
    finally:
        for node in joint.graph.find_nodes(op="call_function", target=prims.clone.default):
            node.target = aten.clone.default


def _clone_what_keeps_type(joint: GraphModule) -> None:
    """`to(copy=True)` may convert to the type that a tensor has, which is an operator of no effect to Inductor."""
    inputs = _memory_of_inputs(joint)
    for target in (aten._to_copy.default, prims.convert_element_type.default):
        for node in joint.graph.find_nodes(op="call_function", target=target):
            source = node.args[0]
            if storage_of(source) in inputs and _kind(source) == _kind(node):
                node.target, node.args, node.kwargs = aten.clone.default, (source,), {}


def _kind(node: Node) -> tuple[Any, ...]:
    value = node.meta["val"]
    return value.dtype, value.device, [*map(str, value.stride())]  # open sizes are not compared


def _copies_of_inputs(joint: GraphModule) -> list[Node]:
    """In the forward pass. Not what `contiguous` copies: eager hands an input on where it is that already."""
    inputs = _memory_of_inputs(joint)
    return [
        node
        for node in joint.graph.find_nodes(op="call_function", target=aten.clone.default)
        if node.kwargs.get("memory_format", torch.preserve_format) is torch.preserve_format
        and storage_of(node.args[0]) in inputs
        and node.meta.get("partitioner_tag") != "is_backward"
    ]


def _memory_of_inputs(joint: GraphModule) -> set[int | None]:
    return {storage_of(node) for node in joint.graph.find_nodes(op="placeholder")} - {None}
