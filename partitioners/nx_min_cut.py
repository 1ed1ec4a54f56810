"""Save the fewest bytes from which the backward pass can be computed without repeating expensive work. Exactly.

Every value of the forward pass may be *saved*, or *recomputed* in the backward pass from values that are themselves
saved or recomputed. The cheapest such choice is a minimum cut (networkx, Boykov-Kolmogorov) of this flow network:

    source --recompute--> (v, in) --save--> (v, out) --infinite--> (user of v, in)      (v, out) --infinite--> sink
                                                                                        if the backward pass reads v

An edge from the source side to the sink side is paid: v is saved if the cut goes through it, and recomputed if all of
it is on the sink's side. An infinite edge is never cut.

* Saving costs the bytes of the memory that is kept alive. Inputs, parameters and outputs are alive anyway and cost
  nothing. A view is free to recompute and never saved: its base is.
* Recomputing costs the bytes moved, counted so finely that all of it together weighs less than one saved byte: it
  decides between cuts of equal size, and makes the choice unique.
* Never recomputed: random draws, operators with side effects, readers of inputs that the function changes in place,
  values tagged to be saved by `torch.utils.checkpoint`; and everything that is not cheap, as bytes alone would
  recompute the whole forward pass from its inputs. Cheap are pointwise operators, casts, factories, reductions,
  normalisations and indexing. So matrix products, convolutions, attention, sorting, scattering, pooling and scans
  always run once.
* Values that the function recomputes with `torch.utils.checkpoint` are saved only if nothing else is possible.
"""

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import networkx as nx
import torch
from networkx.algorithms.flow import boykov_kolmogorov
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from aotkit.aot.partition import (
    Sides,
    classify,
    default_partition,
    extract_forward_backward,
    is_random,
    is_symbol,
    is_tensor,
    is_view,
    must_recompute,
    simplify,
    storages,
)
from aotkit.errors import CompileError

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
CHEAP = frozenset(
    " ".join([CASTS, FACTORIES, REDUCTIONS, NORMALISATIONS, INDEXING, SEEDED_BY_ARGUMENT, VIEWS, POINTWISE]).split()
)


def partition(
    joint: GraphModule, joint_inputs: Any, /, *, num_fwd_outputs: int, **kwargs: Any
) -> tuple[GraphModule, GraphModule]:
    """Split the joint graph into (forward, backward) at the cut of fewest saved bytes."""
    simplify(joint)
    sides = classify(joint, num_fwd_outputs)
    if not sides.backward:
        return default_partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)
    saved = cheapest_cut(sides.needed, costs(joint, sides))
    return extract_forward_backward(joint, saved, num_fwd_outputs=num_fwd_outputs)


@dataclass(frozen=True)
class Cost:
    """What it costs to have one value in the backward pass, in units far below a byte; None: impossible.

    `once`: it must not run in the backward pass if it also runs in the forward pass.
    """

    save: int | None
    recompute: int | None
    once: bool = False


def costs(joint: GraphModule, sides: Sides) -> dict[Node, Cost]:
    """The cost of every value that does not depend on a tangent, in graph order."""
    alive = {storage for node in (*sides.inputs, *sides.outputs) for storage in storages(node)}
    nodes = [node for node in joint.graph.nodes if node.op != "output" and node not in sides.backward]
    constants: set[Node] = set()
    work: dict[Node, int] = {}
    once: set[Node] = set()
    for node in nodes:
        if is_constant(node, constants):
            constants.add(node)
        repeatable = is_cheap(node, constants) or must_recompute(node)
        if may_run_late(node) and (repeatable or node not in sides.forward):
            # What the forward pass does not need itself is no work repeated, wherever it runs.
            work[node] = bytes_moved(node) if node in sides.forward else 0
            if not repeatable:
                once.add(node)
    # One byte outweighs all the work, and what the user asked to recompute outweighs all the memory.
    byte = 1 + len(nodes) + sum(work.values())
    everything = 1 + sum(sum(storages(node).values()) for node in nodes)
    result = {}
    for node in nodes:
        kept = bytes_kept(node, alive, recomputable=node in work)
        if kept and must_recompute(node):
            kept += everything
        save = None if kept is None else kept * byte + is_symbol(node)
        result[node] = Cost(save, work.get(node), once=node in once)
    return result


def bytes_kept(node: Node, alive: set[Any], *, recomputable: bool) -> int | None:
    """How much more memory lives until the backward pass if this value is saved; None: it cannot be."""
    if not is_tensor(node):
        # Sizes and opaque inputs travel for free; a tuple cannot be saved, its items can.
        return 0 if is_symbol(node) or node.op == "placeholder" else None
    if recomputable and (is_view(node) or node.op == "get_attr"):
        return None
    return sum(size for storage, size in storages(node).items() if storage not in alive)


def may_run_late(node: Node) -> bool:
    """Whether a node computes the same in the backward pass as in the forward pass."""
    if node.op == "get_attr":
        return True
    if node.op != "call_function" or node.is_impure(impure_random=False):
        return False
    if is_symbol(node) and any(is_tensor(i) for i in node.all_input_nodes):
        return False  # a size is saved itself, rather than the tensor that it can be read from
    if must_recompute(node):
        return True  # a random draw too: torch then replays the state of its generator
    return node.meta.get("recompute") not in (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE) and (
        not is_random(node)
    )


def is_constant(node: Node, constants: set[Node]) -> bool:
    """Whether a value depends on no input's data, such as a causal mask."""
    return node.op != "placeholder" and all(i in constants or is_symbol(i) for i in node.all_input_nodes)


def is_cheap(node: Node, constants: set[Node]) -> bool:
    """Whether a node costs about as much as reading its inputs, or less."""
    if node in constants or is_symbol(node) or node.target is operator.getitem or is_view(node):
        return True
    packet = getattr(node.target, "overloadpacket", None)
    return torch.Tag.pointwise in getattr(node.target, "tags", ()) or getattr(packet, "__name__", "") in CHEAP


def bytes_moved(node: Node) -> int:
    """The bytes that recomputing a node reads and writes."""
    if node.op == "get_attr" or node.target is operator.getitem or is_view(node):
        return 0
    return sum(sum(storages(n).values()) for n in (node, *node.all_input_nodes))


def cheapest_cut(needed: Iterable[Node], costs: dict[Node, Cost]) -> list[Node]:
    """The values to save such that all `needed` ones are saved or can be recomputed, at the least total cost.

    Raises:
        CompileError: a needed value can neither be saved nor recomputed.
    """
    flow = nx.DiGraph()
    reached = dict.fromkeys(needed)
    for node in reached:
        add_edge(flow, (node, "out"), "sink", None)
    queue = list(reached)
    while queue:
        node = queue.pop()
        cost = costs[node]
        add_edge(flow, "source", (node, "in"), cost.recompute)
        add_edge(flow, (node, "in"), (node, "out"), cost.save)
        for user in node.users if cost.once else ():
            add_edge(flow, (user, "in"), (node, "in"), None)  # user in the forward pass: then node too
        for i in node.all_input_nodes if cost.recompute is not None else ():
            add_edge(flow, (i, "out"), (node, "in"), None)
            if i not in reached:
                reached[i] = None
                queue.append(i)
    if not reached:
        return []
    try:
        _, (near, _) = nx.minimum_cut(flow, "source", "sink", flow_func=boykov_kolmogorov)
    except nx.NetworkXUnbounded:
        stuck = [n.name for n in reached if costs[n].save is None and costs[n].recompute is None]
        raise CompileError(
            f"No partition exists: the backward graph needs a value that depends on {stuck}, which can be neither "
            "saved nor recomputed. Use partition='default', or remove its tag of torch.utils.checkpoint."
        ) from None
    return [node for node in costs if (node, "in") in near and (node, "out") not in near]


def add_edge(flow: "nx.DiGraph[Any]", start: Any, end: Any, capacity: int | None) -> None:
    """Add an edge to a flow network; without a capacity it is infinite."""
    flow.add_edge(start, end, **({} if capacity is None else {"capacity": capacity}))
