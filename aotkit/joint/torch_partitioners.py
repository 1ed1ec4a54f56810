"""torch's own partitioners, with the random numbers of eager.

They make mistakes about random numbers, which are mended here (seen in 2.11 and 2.13): equal draws are merged into one,
an activation budget below 1 draws dropout masks anew in the backward pass, draws that no gradient needs are repeated
there, and a dropout whose result is unused stops `default_partition`. And a budget below 1 recomputes from inputs that
the function has changed since (running statistics): the backward pass then fails.
"""

import operator
import time
from collections.abc import Callable, Collection, Hashable
from functools import partial
from typing import Any

from torch.fx import Graph, GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from aotkit.errors import CompileError
from aotkit.joint.equal_nodes import merge_equal_nodes
from aotkit.joint.sides import keep_readers_of_mutated_inputs, own_draws_of_backward
from aotkit.passes import is_in_kernels, is_random, is_tensor
from aotkit.torch_private.fx import renew_code, scriptable
from aotkit.torch_private.partitioners import choose_saved_values, mended, must_recompute

TINY_BUDGET = 1e-9  # torch returns the inputs for a budget of exactly 0, without looking at any constraint


def _merge_equal_nodes(graph: Graph, extra_node_key: Callable[[Node], Hashable] | None = None) -> Graph:
    """`fx_graph_cse`, but no two draws are equal; torch 2.13 has no second argument."""
    kind = {"kind": extra_node_key} if extra_node_key is not None else {}
    merge_equal_nodes(graph, apart=set(filter(is_random, graph.nodes)), **kind)
    return graph


def default_partition(
    joint: GraphModule, joint_inputs: Any, /, *, num_fwd_outputs: int, **keywords: Any
) -> tuple[GraphModule, GraphModule]:
    """torch's `default_partition`, with the same random numbers as eager."""
    _read_unused_draws(joint)
    with mended(_merge_equal_nodes, _choose_savable_values) as torchs:
        return draw_once(*torchs.default_partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **keywords))


def min_cut_partition(joint: GraphModule, joint_inputs: Any, **keywords: Any) -> tuple[GraphModule, GraphModule]:
    """torch's `min_cut_rematerialization_partition`, with the same random numbers as eager."""
    _read_unused_draws(joint)
    with mended(_merge_equal_nodes, _choose_savable_values) as torchs:
        return draw_once(*torchs.min_cut_rematerialization_partition(joint, joint_inputs, **keywords))


def _choose_savable_values(graph: Graph, info: Any, memory_budget: float = 1) -> list[Node]:
    """`choose_saved_values_set`, but only draws tagged by `torch.utils.checkpoint`, which replays them, run again."""
    start = time.process_time()
    own_draws_of_backward(graph, info)
    keep_readers_of_mutated_inputs(graph)
    for node in graph.nodes:
        if is_random(node) and not must_recompute(node):
            node.meta.update(recompute=CheckpointPolicy.MUST_SAVE, saved_because="random")
    saved: dict[Node, None] = {}
    for node in choose_saved_values(graph, info, memory_budget or TINY_BUDGET):
        # With nothing else left to weigh, torch returns every MUST_SAVE node; of a tuple only the items can be saved.
        is_tuple = isinstance(node.meta.get("val"), tuple | list)
        items = [user for user in node.users if is_tensor(user)] if is_tuple else [node]
        saved.update(dict.fromkeys(source for item in items for source in _in_memory(item)))
    graph.owning_module.meta["choice_seconds"] = time.process_time() - start  # type: ignore[union-attr]
    return list(saved)


def _in_memory(node: Node) -> list[Node]:
    """The node, or what it is computed from in kernels."""
    return [source for i in node.all_input_nodes for source in _in_memory(i)] if is_in_kernels(node) else [node]


def _read_unused_draws(joint: GraphModule) -> None:
    """Add a reader to tuple-valued draws without one, which `default_partition` takes for a tensor."""
    for node in joint.graph.nodes:
        if not node.users and is_random(node) and isinstance(node.meta.get("val"), tuple | list):
            with joint.graph.inserting_after(node):
                item = joint.graph.call_function(operator.getitem, (node, 0))
            item.meta.update(val=node.meta["val"][0])


def draw_once(forward: GraphModule, backward: GraphModule) -> tuple[GraphModule, GraphModule]:
    """Leave every draw in one graph only: dead code that draws is kept by torch, and moves the generator on.

    The graphs come back in modules that can be scripted.

    Raises:
        CompileError: a draw is used by both graphs, which would then see different numbers.
    """
    forward, backward = scriptable(forward), scriptable(backward)
    draws = {gm: {node.name for node in gm.graph.nodes if is_random(node)} for gm in (backward, forward)}
    repeated = draws[forward] & draws[backward]
    for gm in draws:
        # torch keeps all that carries the tag of random operators, attention without dropout too, and what it reads.
        if any(not node.users and node.op not in ("placeholder", "output") for node in gm.graph.nodes):
            gm.graph.eliminate_dead_code(partial(_has_effect, draws[gm] - repeated))
            renew_code(gm)
        repeated &= {node.name for node in gm.graph.nodes}
    if repeated:
        raise CompileError(
            f"The partition draws {sorted(repeated)} in the forward and again in the backward graph, where the random "
            "numbers differ. Save these values instead of recomputing them."
        )
    return forward, backward


def _has_effect(draws: Collection[str], node: Node) -> bool:
    return node.is_impure(impure_random=False) or node.name in draws
