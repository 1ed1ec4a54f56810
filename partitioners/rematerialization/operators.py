"""What an operator costs to run again: nothing to speak of, a pass over its inputs, or arithmetic."""

import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor
from torch.fx import Node

from aotkit.aot.graphs import is_pointwise, is_symbol
from aotkit.aot.partition import is_view, storages
from aotkit.inspection import packet_name, size_hint

# Cheap operators that do not carry torch.Tag.pointwise: one pass over their inputs.
CASTS = "_to_copy to type_as clone lift_fresh_copy convert_element_type contiguous"
FACTORIES = "full zeros ones empty arange iota scalar_tensor full_like zeros_like ones_like empty_like \
    new_full new_zeros new_ones new_empty eye"
REDUCTIONS = "sum mean amax amin max min var std var_mean any all argmax argmin logsumexp sum_to_size \
    _grad_sum_to_size prepare_softmax_online"
NORMALISATIONS = "_softmax _log_softmax native_layer_norm native_group_norm _fused_rms_norm \
    _native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training \
    _batch_norm_with_update_functional _batch_norm_no_update"
INDEXING = "index gather select slice cat stack triu tril constant_pad_nd flip repeat broadcast_in_dim \
    _low_memory_max_pool_offsets_to_indices"
SEEDED_BY_ARGUMENT = "inductor_lookup_seed inductor_random inductor_randint"  # the same seed gives the same numbers
VIEWS = "_unsafe_view reshape view expand permute t squeeze unsqueeze as_strided split alias broadcast_tensors"
POINTWISE = "rsub div isinf __and__ __or__ __xor__ __lshift__ __rshift__"  # not all overloads have the tag
REDUCED = frozenset(REDUCTIONS.split())
UNROLLED = 8  # elements; Inductor's `unroll_reductions_threshold`
PASSES = REDUCED | frozenset(NORMALISATIONS.split())
CHEAP = PASSES | set(" ".join([CASTS, FACTORIES, INDEXING, SEEDED_BY_ARGUMENT, VIEWS, POINTWISE]).split())


def is_free(node: Node, memory: Callable[[Node], Mapping[Any, int]] = storages) -> bool:
    """Whether a node moves no data.

    Args:
        memory: what `storages` gives, if that is known.
    """
    return node.op == "get_attr" or is_symbol(node) or node.target is operator.getitem or is_view(node, memory)


def is_cheap(node: Node) -> bool:
    """Whether a node costs about as much as reading its inputs, or less."""
    return is_pointwise(node) or packet_name(node) in CHEAP or is_free(node)


def is_barrier(node: Node, free: Collection[Node]) -> bool:
    """Whether a node is a kernel of its own.

    Args:
        free: the nodes of its graph that move no data.
    """
    return node not in free and not is_cheap(node)


def is_pass(node: Node) -> bool:
    """Whether a node reads its inputs as a whole before its result is there, as a sum of many elements does."""
    return packet_name(node) in PASSES and not _is_unrolled(node)


def _is_unrolled(node: Node) -> bool:
    """Whether a node reduces so few elements to one that a compiler adds them up as it does the operands of a `+`."""
    if packet_name(node) not in REDUCED or not node.all_input_nodes:
        return False
    before, after = (_elements(n) for n in (node.all_input_nodes[0], node))
    return before is not None and after is not None and before <= UNROLLED * after


def _elements(node: Node) -> int | None:
    """Of a tensor, or of the first of several; None if that depends on data."""
    value = node.meta["val"][0] if isinstance(node.meta.get("val"), tuple | list) else node.meta.get("val")
    return size_hint(value.numel()) if isinstance(value, Tensor) else None
