"""The values of a joint graph that can be saved or recomputed, and what an operator costs to run again.

That is nothing to speak of, a pass over its inputs, or arithmetic.
"""

import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.joint import Sides
from aotkit.passes import (
    is_in_kernels,
    is_pointwise,
    is_random,
    is_symbol,
    is_tensor,
    is_view,
    must_save,
    packet_name,
    producer,
    size_hint,
    storages,
)
from aotkit.torch_private.partitioners import must_recompute

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


@dataclass
class Values:
    """The nodes that do not depend on a tangent, in graph order. All lists have one entry for each.

    Attributes:
        nodes: the nodes.
        inputs: the numbers of those that each is computed from.
        needed: the numbers of those that the backward pass reads.
        kept: how many more bytes live until the backward pass if it is saved; None: it cannot be.
        repeatable: whether it is the same when it is computed in the backward pass.
        constant: whether it depends on no input's data, such as a causal mask.
        in_forward: whether the forward pass computes it in any case.
        asked_for: whether `torch.utils.checkpoint` asked to recompute it.
        memories: `storages` of each node of the joint graph, gradients among them.
    """

    nodes: list[Node]
    inputs: list[list[int]]
    needed: list[int]
    kept: list[int | None]
    repeatable: list[bool]
    constant: list[bool]
    in_forward: list[bool]
    asked_for: list[bool]
    memories: dict[Node, dict[Any, int]]

    def nbytes(self, node: Node) -> int:
        """The memory of a node's tensors."""
        return sum(self.memories[node].values())

    @cached_property
    def free(self) -> set[Node]:
        """The nodes of the joint graph that move no data."""
        return {node for node in self.memories if is_free(node, self.memories.__getitem__)}


def values_of(joint: GraphModule, sides: Sides) -> Values:
    """All of them."""
    nodes = [node for node in joint.graph.nodes if node.op != "output" and node not in sides.backward]
    number = {node: i for i, node in enumerate(nodes)}
    memories = {node: storages(node) for node in joint.graph.nodes}
    alive = {storage for node in (*sides.inputs, *sides.outputs) for storage in memories[node]}
    repeatable = [why_once(node) is None for node in nodes]
    inputs = [[number[i] for i in node.all_input_nodes] for node in nodes]
    constant: list[bool] = []
    for node, read in zip(nodes, inputs, strict=True):
        constant.append(node.op != "placeholder" and all(constant[i] or is_symbol(nodes[i]) for i in read))
    return Values(
        nodes,
        inputs,
        [number[node] for node in sides.needed],
        [_bytes_kept(node, memories, alive, again) for node, again in zip(nodes, repeatable, strict=True)],
        repeatable,
        constant,
        [producer(node) in sides.forward for node in nodes],
        [must_recompute(node) for node in nodes],
        memories,
    )


def _bytes_kept(
    node: Node, memories: Mapping[Node, Mapping[Any, int]], alive: set[Any], repeatable: bool
) -> int | None:
    if not is_tensor(node):
        # Sizes and opaque inputs travel for free; a tuple cannot be saved, its items can.
        return 0 if is_symbol(node) or node.op == "placeholder" else None
    if repeatable and (is_view(node, memories.__getitem__) or node.op == "get_attr" or is_in_kernels(node)):
        return None
    return sum(size for storage, size in memories[node].items() if storage not in alive)


def why_once(node: Node) -> str | None:
    """Why a value cannot be computed a second time, in the backward pass; None: it can."""
    if node.op == "get_attr":
        return None
    if node.op != "call_function":
        return "input"
    if node.is_impure(impure_random=False):
        return "side effect"
    if is_symbol(node) and any(is_tensor(i) for i in node.all_input_nodes):
        return "size of a tensor"  # saved itself, rather than the tensor that it can be read from
    if must_recompute(node):
        return None  # a random draw too: torch then replays the state of its generator
    if must_save(node):
        return str(node.meta.get("saved_because", "tagged by torch.utils.checkpoint"))
    return "random" if is_random(node) else None
