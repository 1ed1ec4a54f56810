"""What kind of work an operation is, for colours and filters."""

import operator

import torch
from torch.fx import Node

from aotkit.inspection.nodes import is_symbolic, packet_name
from aotkit.passes import flops, is_random, is_view

# Reductions without torch.Tag.reduction.
_NORMALISATIONS = ("softmax", "norm", "nll_loss", "cumsum", "cumprod", "logsumexp")
_CREATIONS = ("full", "zeros", "ones", "empty", "arange", "iota", "scalar_tensor", "full_like", "zeros_like")


def class_of(node: Node) -> str:
    """One of "input", "constant", "size", "view", "random", "matmul", "reduction", "pointwise" and "other".

    "matmul" are matrix products, convolutions and attention. Whatever makes no new memory is a "view".
    """
    if node.op == "placeholder":
        return "input"
    if is_symbolic(node):
        return "size"
    name, tags = packet_name(node), getattr(node.target, "tags", ())
    if node.op == "get_attr" or name in _CREATIONS:
        return "constant"
    if node.target is operator.getitem or is_view(node):
        return "view"
    if is_random(node):
        return "random"
    if flops(node):
        return "matmul"
    if torch.Tag.reduction in tags or any(part in name for part in _NORMALISATIONS):
        return "reduction"
    return "pointwise" if torch.Tag.pointwise in tags else "other"
