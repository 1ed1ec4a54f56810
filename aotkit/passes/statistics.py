"""A repair of what torch says about normalization on a CPU: the type in which it keeps means and deviations."""

import operator
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.torch_private.fake_tensors import tensor_metadata

aten = torch.ops.aten
# Of all of them, the second and third results are the statistics.
NORMALIZATIONS = (
    aten.native_layer_norm.default,
    aten.native_group_norm.default,
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_functional.default,
    aten._batch_norm_with_update.default,
    aten._batch_norm_with_update_functional.default,
)
HALVES = (torch.float16, torch.bfloat16)


def correct_statistics(gm: GraphModule) -> None:
    """Note on normalizations of half precision with float32 weights, as under autocast, that statistics are float32.

    torch (2.11 to 2.13) says that they are of the input's type, and what is saved for the backward pass would be
    another than the graph promises.
    """
    for target in NORMALIZATIONS:
        for node in gm.graph.find_nodes(op="call_function", target=target):
            if _is_mixed(node):
                values = node.meta["val"]
                node.meta["val"] = tuple(_as_float(v) if i in (1, 2) else v for i, v in enumerate(values))
                for user in node.users:
                    if user.target is operator.getitem and user.args[1] in (1, 2):
                        _describe(user, node.meta["val"][user.args[1]])


def _is_mixed(node: Node) -> bool:
    values: Sequence[Tensor] = [n.meta["val"] for n in node.all_input_nodes if isinstance(n.meta["val"], Tensor)]
    first = node.args[0]
    assert isinstance(first, Node)
    given = first.meta["val"]
    return given.device.type == "cpu" and given.dtype in HALVES and any(v.dtype is torch.float32 for v in values)


def _as_float(value: Tensor) -> Tensor:
    return value.new_empty_strided(value.shape, value.stride(), dtype=torch.float32)


def _describe(node: Node, value: Tensor) -> None:
    node.meta["val"] = value
    if "tensor_meta" in node.meta:
        node.meta["tensor_meta"] = tensor_metadata(value)
    for user in node.users:
        if user.target in (aten.detach.default, aten.alias.default):  # of what is saved
            _describe(user, value)
