"""What kind of kernel an operator is to an estimate of time: its floating-point operations, and whether it fuses."""

from typing import Any

import torch
from torch.fx import Node
from torch.utils.flop_counter import flop_registry

from aotkit.aot import pytree

# Kernels of libraries, and those that no pointwise kernel runs into: besides all that does floating-point work.
POOLING = "max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices \
    max_pool3d_with_indices_backward _low_memory_max_pool_with_offsets avg_pool2d avg_pool2d_backward \
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward"
SCATTERING = "scatter scatter_add scatter_reduce index_put _unsafe_index_put index_add embedding_dense_backward"
ORDERING = "sort topk kthvalue median argsort searchsorted multinomial nonzero"
SCANS = "cumsum cumprod cummax cummin logcumsumexp"
OTHERS = "upsample_bilinear2d upsample_bilinear2d_backward upsample_nearest2d_backward _embedding_bag \
    mkldnn_rnn_layer _cudnn_rnn _fft_r2c _fft_c2r _fft_c2c"
BARRIERS = frozenset(" ".join([POOLING, SCATTERING, ORDERING, SCANS, OTHERS]).split())
# Operators that read as many elements of their first input as they return, not all of it.
LOOKUPS = frozenset({"embedding", "index", "_unsafe_index", "gather", "index_select", "take"})


def operator(node: Node) -> str:
    """Its name without namespace and overload: `add`."""
    target = getattr(node.target, "overloadpacket", node.target)
    return str(getattr(target, "__name__", target))


def flops(node: Node) -> int:
    """Floating-point operations of a matrix product, a convolution or attention; 0 for others.

    Source: the table of `torch.utils.flop_counter`; fused attention on a CPU, which it lacks, is counted as it counts
    that on a GPU: all of the products, masked or not, and five for two in the backward pass.
    """
    args, kwargs = pytree.tree_map_only(Node, lambda n: n.meta.get("val"), (node.args, node.kwargs))
    packet = getattr(node.target, "overloadpacket", None)
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=node.meta["val"]))
    if packet is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu:
        return 4 * _products(*args[:2])
    if packet is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward:
        return 10 * _products(*args[1:3])
    return 0


def _products(query: Any, key: Any) -> int:
    """Multiplications of queries with keys: [batch, heads, length, width] each; values are as wide."""
    batch, heads, length, width = query.shape
    return int(batch * heads * length * width * key.shape[2])


def is_barrier(node: Node, flops: int) -> bool:
    """Whether a node is a kernel of its own, which reads its inputs from memory and writes its results there."""
    return flops > 0 or operator(node) in BARRIERS or "attention" in operator(node)
