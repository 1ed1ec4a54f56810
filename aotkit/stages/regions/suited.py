"""Whether a backend suits a graph as a whole: what it leaves should be what every compiler leaves to libraries."""

import math
from collections.abc import Sequence

import torch
from torch.fx import GraphModule, Node

from aotkit.interfaces import Backend
from aotkit.passes import operator_name, packet_name, size_hint, tensors_of
from aotkit.stages.regions.finding import Operations
from aotkit.torch_private.dispatch import OpOverload

# Of which ATen, or a library behind it, has kernels that no compiler generates. Not `embedding_dense_backward`: the
# gradient of 32,768 rows of BERT's table, with that of their layer norm, took 650 us with it, and 295 with Inductor.
LIBRARY = frozenset({
    "mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "_int_mm", "_scaled_mm", "convolution",
    "convolution_backward", "sort", "topk", "median", "nanmedian", "mode", "kthvalue", "unique_dim", "_unique2",
    "unique_consecutive", "histc", "_cdist_forward", "_cdist_backward", "_pdist_forward", "_ctc_loss",
    "_ctc_loss_backward", "_cudnn_ctc_loss", "_cudnn_rnn", "_cudnn_rnn_backward",
    "_embedding_bag", "_embedding_bag_forward_only", "_embedding_bag_dense_backward", "grid_sampler_2d_backward",
    "grid_sampler_3d", "grid_sampler_3d_backward", "upsample_linear1d_backward", "upsample_bilinear2d_backward",
    "upsample_bicubic2d_backward", "upsample_trilinear3d_backward", "nonzero", "masked_select", "cholesky",
    "cholesky_solve", "triangular_solve", "ormqr", "geqrf", "_trilinear", "copy_", "lift_fresh_copy",
})  # fmt: skip
SMALL = 64  # times less to move than for the largest operation: it does not matter who does that
SORTING = {"index_put", "_unsafe_index_put"}  # but not where ATen sorts before it writes
BY_INDEX = {"embedding", "index", "index_select", "gather"}  # read as many elements as they return, not all
FAMILIES = ("_scaled_dot_product_", "_flash_attention_", "_efficient_attention_", "_fft_", "linalg_", "_linalg_")
GENERATED = {"linalg_cross", "linalg_vector_norm"}


def why_unsuited(backends: Sequence[Backend], gm: GraphModule) -> str | None:
    """What all of these leave of a graph, other than to libraries, and views and constants; None: nothing."""
    everything = [backend.declines for backend in backends]
    if None in everything:
        return None
    operations = Operations(gm)
    sizes = {op: _bytes(op) for op in operations.nodes}
    for op, size in sizes.items():
        is_small = size * SMALL <= max(sizes.values()) and packet_name(op) not in SORTING
        if op not in operations.views and not is_small and not is_of_a_library(op):
            reasons = [declines(op) for declines in everything if declines is not None]
            if None not in reasons:
                return f"{operator_name(op)} ({'; '.join(map(str, reasons))})"
    return None


def _bytes(op: Node) -> int:
    """Of what an operation reads and returns, at the sizes that it is traced for; by index, as much as it returns."""
    read = [op, *op.all_input_nodes[1:]] if packet_name(op) in BY_INDEX else op.all_input_nodes
    tensors = [tensor for node in (op, *read) for tensor in tensors_of(node)]
    return sum(size_hint(math.prod(t.shape) * t.dtype.itemsize) or 0 for t in tensors)


def is_of_a_library(op: Node) -> bool:
    """Whether nobody generates code for an operation: a product, sorting, drawing random numbers, a custom operator."""
    target = op.target
    if not isinstance(target, OpOverload):
        return True
    name = packet_name(op)
    known = name in LIBRARY or (name.startswith(FAMILIES) and name not in GENERATED)
    known |= torch.Tag.nondeterministic_seeded in target.tags or _copies_to_another_device(op)
    return known or target.namespace not in ("aten", "prims")


def _copies_to_another_device(op: Node) -> bool:
    tensors = [tensor for node in (op, *op.all_input_nodes) for tensor in tensors_of(node)]
    return packet_name(op) in ("_to_copy", "copy") and len({tensor.device for tensor in tensors}) > 1
