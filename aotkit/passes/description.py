"""A graph as text that says all that it computes, the same in every process."""

import os
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.passes.chunks import in_chunks
from aotkit.passes.constants import constant_data, constant_of
from aotkit.torch_private.dispatch import tree_leaves

# Where functions come from that only another version of torch or Python changes.
FIXED = ("torch", "_operator", "operator", "builtins", "math")
KNOWN_OPERATORS = ("aten", "prims", "prim", "_c10d_functional", "aotkit")
# Of the operators on graphs, those whose arguments say all: a Triton kernel of the user's is a number there.
ON_GRAPHS = (
    "autograd_function_apply",
    "cond",
    "flex_attention",
    "flex_attention_backward",
    "tag_activation_checkpoint",
)
_TORCH = os.path.dirname(torch.__file__)
_ADDRESS = re.compile(r"\bat 0x[0-9a-f]+")


def description(gm: GraphModule) -> str | None:
    """Every node with what it calls, takes and gives; None for a graph that holds values, or calls what is not torch's.

    Small constants of the code count as what the graph says: see `constant_of`.

    Two graphs with one description compute the same from the same inputs, in processes with the same torch.
    """
    lines = [*_lines(gm, "")]
    if None in lines:
        return None
    text = "\n".join(map(str, lines))
    return None if holds_address(text) else text


def holds_address(text: str) -> bool:
    """Whether a text names an object by its place in memory, as the default `repr` does."""
    return _ADDRESS.search(text) is not None


def _lines(gm: GraphModule, indent: str) -> Iterator[str | None]:
    modules = dict(gm.named_modules())
    for node in gm.graph.nodes:
        called = _called(node)
        yield None if called is None else f"{indent}{node.name} = {called} {node.args} {node.kwargs} {_given(node)}"
        if node.op in ("get_attr", "call_module"):
            inner = modules.get(str(node.target))
            yield from _lines(inner, f"{indent}  ") if isinstance(inner, GraphModule) else (_constant(gm, node),)


def _constant(gm: GraphModule, node: Node) -> str | None:
    constant = constant_of(gm, node) if node.op == "get_attr" else None
    return None if constant is None else f"  {constant_data(constant)}"


def _called(node: Node) -> str | None:
    target: Any = node.target
    if node.op != "call_function":
        return f"{node.op} {target if node.op != 'placeholder' else ''}"
    if (namespace := getattr(target, "namespace", None)) is not None:
        is_known = namespace in KNOWN_OPERATORS or (namespace == "higher_order" and str(target) in ON_GRAPHS)
        return f"{namespace} {target}" if is_known else None
    if target is in_chunks:
        return "aotkit.in_chunks"
    module = getattr(target, "__module__", None) or ""
    code = getattr(target, "__code__", None)
    # A wrapper of somebody else's has the name of what it wraps, but not its file.
    is_torchs = code is None or code.co_filename.startswith(_TORCH)
    name = getattr(target, "__qualname__", None)  # an object that can be called has none, but state
    return f"{module}.{name}" if name and module.partition(".")[0] in FIXED and is_torchs else None


def _given(node: Node) -> str:
    """What is known of a node's value: of inputs it is all that a graph says of them."""
    return " ".join(map(tensor_kind, tree_leaves(node.meta.get("val", node.meta.get("example_value")))))


def tensor_kind(value: Any) -> str:
    """All that compiled code may rely on but for the values; of what is no tensor, its type."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    strides = value.stride() if value.layout is torch.strided else ()
    parts = (type(value).__name__, value.dtype, value.device, [*value.shape], [*strides], value.requires_grad)
    lazily = value.is_conj(), value.is_neg(), value.is_inference()
    return f"{parts} {value.storage_offset() if strides else 0}{f' {lazily}' if any(lazily) else ''}"
