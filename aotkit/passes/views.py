"""Which nodes are views, and of what; passes over a graph leave them with the memory of what they were views of."""

import operator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.passes.nodes import is_symbol, storage_of
from aotkit.torch_private.dispatch import is_composite


def views_behind(node: Node) -> list[Node]:
    """What a node is a view of, through other views: that first, then the views of it, and the node itself last."""
    chain = [node]
    while (viewed := _viewed_by(chain[0])) is not None:
        chain.insert(0, viewed)
    return chain


def _viewed_by(node: Node) -> Node | None:
    """The tensor, or the tuple of tensors, that a node gives a view of, and no copy."""
    sources = [i for i in node.all_input_nodes if not is_symbol(i)]
    if node.op != "call_function" or len(sources) != 1:
        return None
    (source,) = sources
    same_memory = storage_of(node) is not None and storage_of(node) == storage_of(source)
    return source if same_memory or node.target is operator.getitem or _always_views(node.target) else None


@cache
def _always_views(target: Any) -> bool:
    """Whether an operator copies nothing, whatever its arguments: unlike `reshape`, which consists of others."""
    schema = getattr(target, "_schema", None)
    if schema is None or schema.is_mutable or len(schema.returns) != 1:
        return False
    return target is torch.ops.aten._unsafe_view.default or (
        schema.returns[0].alias_info is not None and not is_composite(target)
    )


def share_viewed_memory(gm: GraphModule) -> None:
    """Let the fake tensor of each view share the storage of what it views, in place.

    Inductor traces what it puts into a graph, such as attention that it recognises, with fake tensors of its own. The
    parts of one projection, queries, keys and values, would count as three memories, each as large as all of them.
    """
    for node in gm.graph.nodes:
        if not _is_one_view(node) or not isinstance(node.args[0], Node):
            continue
        value, viewed = node.meta.get("val"), node.args[0].meta.get("val")
        if isinstance(value, Tensor) and isinstance(viewed, Tensor) and _may_be_view(value, viewed):
            # With its own strides: they are what was promised for outputs of the function.
            node.meta["val"] = viewed.as_strided(value.shape, value.stride(), value.storage_offset())


def _is_one_view(node: Node) -> bool:
    """Whether an operator gives a view of its first argument, always."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or schema.is_mutable or len(schema.returns) != 1:
        return False
    return schema.returns[0].alias_info is not None


def _may_be_view(value: Tensor, viewed: Tensor) -> bool:
    """Whether a value has memory of its own, and would fit into that of another. Open sizes are not compared."""
    if value.layout is not torch.strided or viewed.layout is not torch.strided:
        return False
    own, other = value.untyped_storage(), viewed.untyped_storage()
    sizes = (*value.shape, *value.stride(), value.storage_offset(), own.nbytes(), other.nbytes())
    if value.dtype != viewed.dtype or any(type(size) is not int for size in sizes) or own._cdata == other._cdata:
        return False
    return not value.numel() or _end(value) <= other.nbytes()


def _end(value: Tensor) -> int:
    """The byte of its storage at which a tensor ends."""
    last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    return int(value.storage_offset() + last + 1) * value.element_size()
