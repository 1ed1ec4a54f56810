"""What eager would save for the backward pass of a graph that TorchDynamo captured."""

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from aotkit.passes import size_hint
from aotkit.torch_private.dispatch import pytree
from aotkit.torch_private.fake_tensors import mode_of


def saved_in_eager(gm: GraphModule) -> int | None:
    """Bytes of the storages that eager's autograd graph keeps, other than inputs and outputs.

    It runs the graph on tensors without memory, of the sizes that it was captured for. None if that cannot be.
    """
    inputs = [node.meta.get("example_value") for node in gm.graph.find_nodes(op="placeholder")]
    saved: dict[int, Any] = {}  # storages, which stay alive so that no two have one key

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage._cdata] = storage
        return tensor

    # Whatever a graph cannot do without memory, it raises in its own way.
    with suppress(Exception), mode_of(inputs), torch.enable_grad():
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            outputs = gm(*inputs)
        held = [t.untyped_storage() for t in pytree.tree_leaves([inputs, outputs]) if isinstance(t, Tensor)]
        for storage in held:
            saved.pop(storage._cdata, None)
        sizes = [size_hint(storage.nbytes()) for storage in saved.values()]
        return sum(size for size in sizes if size is not None)
    return None
