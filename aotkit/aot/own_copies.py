"""Clones that a function makes of its inputs: what becomes of the inputs after the call is no matter to them.

`x @ queue.clone()` reads a queue that is updated before the backward pass runs, as in MoCo. PyTorch's minimum cut
copies it anew in the backward pass, and Inductor's passes read the queue itself. Autograd finds that out and raises,
or, where a view was saved, does not, and gradients are wrong (torch 2.13, under torch.compile, too). Here such a copy
is made once, and saved where the backward pass needs it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from aotkit.aot.graphs import storage_of

aten, prims = torch.ops.aten, torch.ops.prims


def keep_copies(joint: GraphModule) -> None:
    """Let no partitioner make copies of inputs again, unless `torch.utils.checkpoint` asked for that."""
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


def _copies_of_inputs(joint: GraphModule) -> list[Node]:
    """In the forward pass. Not what `contiguous` copies: eager hands an input on where it is that already."""
    inputs = {storage_of(node) for node in joint.graph.find_nodes(op="placeholder")} - {None}
    return [
        node
        for node in joint.graph.find_nodes(op="call_function", target=aten.clone.default)
        if node.kwargs.get("memory_format", torch.preserve_format) is torch.preserve_format
        and storage_of(node.args[0]) in inputs
        and node.meta.get("partitioner_tag") != "is_backward"
    ]
