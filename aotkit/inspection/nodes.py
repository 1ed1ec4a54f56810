"""What one graph node computes: short names, types and sizes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.multiprocessing.reductions import StorageWeakRef

from aotkit.passes import SYMBOLIC, size_hint, tensors_of
from aotkit.text import sum_known

_SHORT = (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "i"), ("complex", "c"))


def dtype_name(dtype: torch.dtype) -> str:
    """`f32` for `torch.float32`, `bf16` for `torch.bfloat16`, `i64` for `torch.int64`, `bool` for `torch.bool`."""
    name = str(dtype).removeprefix("torch.")
    for long, short in _SHORT:
        if name.startswith(long):
            return short + name.removeprefix(long)
    return name


def type_name(value: Any) -> str:
    """`f32[2, 4]` for a fake tensor, `(f32[2], i64[])` for several, `int s0` for a symbolic size, `?` if unknown."""
    if isinstance(value, Tensor):
        return tensor_type_name(value.dtype, value.shape)
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(map(type_name, value)) + ")"
    if isinstance(value, SYMBOLIC):
        return f"{type(value).__name__.removeprefix('Sym').lower()} {value}"
    return "?" if value is None else type(value).__name__


def tensor_type_name(dtype: torch.dtype, shape: Sequence[int | torch.SymInt]) -> str:
    """`f32[2, s0]`."""
    return f"{dtype_name(dtype)}[{', '.join(map(str, shape))}]"


def nbytes_of(value: Tensor, whole: bool = False) -> int | None:
    """Of the elements, but not more than there are in memory: an expanded tensor repeats them.

    Args:
        whole: of all the memory instead that it is a part of.
    """
    size = size_hint(value.numel() * value.element_size())
    if (storage := memory_of(value)) is None:
        return size
    memory = size_hint(storage.nbytes())
    return memory if whole else None if size is None or memory is None else min(size, memory)


def bytes_of(node: Node) -> int | None:
    """Of all tensors that a node computes; None if a size depends on data."""
    return sum_known(map(nbytes_of, tensors_of(node)))


def bytes_moved(node: Node) -> int | None:
    """The bytes that an operation reads and writes; None if a size depends on data."""
    return sum_known(map(bytes_of, (node, *node.all_input_nodes)))


def memory_of(value: Any) -> torch.UntypedStorage | None:
    """The storage of a fake tensor; None for a sparse one and for what is no tensor."""
    return value.untyped_storage() if isinstance(value, Tensor) and value.layout == torch.strided else None


def storage_roots(gm: GraphModule) -> dict[Node, Node]:
    """For each node, the first node of the graph whose result lies in the same storage: itself unless it is a view.

    Fake tensors of one trace share a storage exactly where the real ones will, also through operators that view only
    sometimes, such as `reshape`, and through `getitem` of a `split`. A node without a fake tensor stands for itself.
    """
    first: dict[StorageWeakRef, Node] = {}
    roots: dict[Node, Node] = {}
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        several = isinstance(value, (list, tuple)) and len(value) > 0
        storage = memory_of(value[0] if several else value)
        roots[node] = node
        if storage is not None:
            key = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            # A tuple does not own the storage of its first entry: that is the `getitem` which takes it out.
            roots[node] = first.get(key, node) if several else first.setdefault(key, node)
    return roots
