"""What partitioners need of torch's private parts: classify a joint graph's nodes, split it, torch's own partitioners.

torch's partitioners make mistakes about random numbers, which the wrappers here mend (seen in 2.11 and 2.13):
equal draws are merged into one, an activation budget below 1 draws dropout masks anew in the backward pass, draws
that no gradient needs are repeated there, and a dropout whose result is unused stops `default_partition`. And a budget
below 1 recomputes from inputs that the function has changed since (running statistics): the backward pass then fails.
"""

import operator
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental import symbolic_shapes
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy

from aotkit.aot.equal_nodes import merge_equal_nodes
from aotkit.aot.graph_modules import renew_code, scriptable
from aotkit.aot.graphs import IN_KERNELS, is_symbol, mutated_inputs
from aotkit.aot.parts import extracting_by, needed, nodes_of_part, partitioners, patching
from aotkit.errors import CompileError

_choose_saved_values_set = partitioners.choose_saved_values_set
_fx_graph_cse = partitioners.fx_graph_cse
_size_hint: Any = getattr(symbolic_shapes, "optimization_hint", getattr(symbolic_shapes, "size_hint", None))
UNKNOWN_SIZE = 4096  # elements assumed for a size that only the data decide, torch's own guess
SEEDED = torch.Tag.nondeterministic_seeded
FORCED: dict[Callable[[GraphModule], None], str] = {
    partitioners.force_save_collectives: "collective communication",
    partitioners.force_save_effectful_ops: "side effect",
    partitioners.force_save_bw_mutation_src: "the backward pass changes its input in place",
}
TINY_BUDGET = 1e-9  # torch returns the inputs for a budget of exactly 0, without looking at any constraint


@dataclass(frozen=True)
class Sides:
    """What a joint graph leaves a partitioner to decide.

    Attributes:
        inputs: placeholders of the forward graph.
        outputs: nodes that the forward graph returns to the caller.
        forward: nodes that the forward graph runs in any case, as its outputs depend on them.
        backward: nodes that can only run in the backward graph, because they depend on a tangent.
        needed: nodes outside `backward` that it reads, in graph order: to be saved, or recomputed from what is.
    """

    inputs: list[Node]
    outputs: list[Node]
    forward: set[Node]
    backward: set[Node]
    needed: list[Node]


def is_random(node: Node) -> bool:
    """Whether a node draws from a random generator, itself or in a subgraph that it calls."""
    if isinstance(node.target, OpOverload):  # calls none
        return SEEDED in node.target.tags and not _has_no_dropout(node)
    owner = node.graph.owning_module
    bodies = [getattr(owner, i.target, None) for i in node.all_input_nodes if i.op == "get_attr"]  # type: ignore[arg-type]
    if any(is_random(inner) for body in bodies if isinstance(body, GraphModule) for inner in body.graph.nodes):
        return True
    called = [t for t in (node.target, *node.args) if SEEDED in getattr(t, "tags", ())]
    return bool(called) and not _has_no_dropout(node)


def _has_no_dropout(node: Node) -> bool:
    """Attention is tagged as random, but draws nothing if its `dropout_p` is 0."""
    schema = getattr(node.target, "_schema", None)
    for i, argument in enumerate(schema.arguments if schema else ()):
        if argument.name == "dropout_p":
            value = node.args[i] if i < len(node.args) else node.kwargs.get("dropout_p", argument.default_value)
            return isinstance(value, float | int) and value == 0
    return False


def must_recompute(node: Node) -> bool:
    """Whether `torch.utils.checkpoint` inside the function asked to recompute this node."""
    return bool(partitioners.must_recompute(node))


def simplify(joint: GraphModule) -> None:
    """Remove dead code and merge equal nodes, in place; and complete the tags of `torch.utils.checkpoint`.

    The module keeps its old code.
    """
    graph = joint.graph
    is_needed = set(needed(graph))
    for node in reversed(graph.nodes):
        if node not in is_needed:
            graph.erase_node(node)
    merge_equal_nodes(graph, apart=_large_constants(graph.nodes).union(filter(is_random, graph.nodes)))
    if partitioners.has_recomputable_ops(joint):
        partitioners.cleanup_recompute_tags(joint, is_default_partition=False)
    _force(joint)
    _keep_readers_of_mutated_inputs(joint.graph)


def _force(joint: GraphModule) -> None:
    """Let torch's functions tag what has to be saved, and leave the reason on that."""
    forced = set(filter(must_save, joint.graph.nodes))
    for tag, reason in FORCED.items():
        tag(joint)
        for node in joint.graph.nodes:
            if must_save(node) and node not in forced:
                forced.add(node)
                node.meta["saved_because"] = reason


def is_in_kernels(node: Node) -> bool:
    """Whether each kernel that reads a value computes it: there is nothing to save."""
    return IN_KERNELS in node.meta


def must_save(node: Node) -> bool:
    """Whether something has forbidden to recompute this node."""
    return node.meta.get("recompute") in (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)


def _keep_readers_of_mutated_inputs(graph: Graph) -> None:
    """What reads an input that the function changes in place cannot run later, when the input has its new value."""
    mutated = mutated_inputs(graph)
    if not mutated:
        return
    for node in graph.nodes:
        if node.op == "call_function" and any(i in mutated for i in node.all_input_nodes) and not must_recompute(node):
            if is_view(node):
                mutated.add(node)
            elif not is_symbol(node):
                reason = "reads an input changed in place"
                node.meta.update(recompute=CheckpointPolicy.MUST_SAVE, saved_because=reason)


def _merge_equal_nodes(graph: Graph, extra_node_key: Callable[[Node], Hashable] | None = None) -> Graph:
    """`fx_graph_cse`, but no two draws are equal; torch 2.13 has no second argument."""
    kind = {"kind": extra_node_key} if extra_node_key is not None else {}
    merge_equal_nodes(graph, apart=set(filter(is_random, graph.nodes)), **kind)
    return graph


def _large_constants(nodes: Iterable[Node]) -> set[Node]:
    """Tensors that no input's data decide, such as the numbers of the elements from which random bits are made.

    Computing one again in each kernel that reads it is free; one that several layers share is read from memory.
    """
    found: set[Node] = set()
    for node in nodes:
        tensors = [i for i in node.all_input_nodes if not is_symbol(i)]
        if node.op == "call_function" and is_tensor(node) and node.meta["val"].dim() and found.issuperset(tensors):
            found.add(node)
    return found


def classify(joint: GraphModule, num_fwd_outputs: int) -> Sides:
    """Sort the nodes of a joint graph by the side of the cut that they can be on."""
    with extracting_by(nodes_of_part):
        info = partitioners.classify_nodes(joint, [], num_fwd_outputs)
    _own_draws_of_backward(joint.graph, info)
    leaves: list[Any] = tree_leaves(joint.graph.output_node().args)
    backward = set(info.tangents_closure)
    for node in joint.graph.nodes:
        if node.op == "placeholder" and node not in info.inputs:
            backward.add(node)
    read = {node for b in backward if b.op != "output" for node in b.all_input_nodes}
    read.update(leaf for leaf in leaves[num_fwd_outputs:] if isinstance(leaf, Node))
    return Sides(
        inputs=info.inputs,
        outputs=[leaf for leaf in leaves[:num_fwd_outputs] if isinstance(leaf, Node)],
        forward=set(info._required_fw_nodes),
        backward=backward,
        needed=[node for node in joint.graph.nodes if node in read and node not in backward],
    )


def _own_draws_of_backward(graph: Graph, info: Any) -> None:
    """Draws of the backward pass (noise on gradients) happen there, so nothing that depends on them can be saved."""
    late: set[Node] = set()
    for node in graph.nodes:
        starts = is_random(node) and partitioners._has_tag_is_backward(node)
        if node.op != "output" and (starts or any(i in late for i in node.all_input_nodes)):
            late.add(node)
            info._required_fw_nodes.discard(node)  # torch counts dead code that draws among these
            info.required_bw_nodes.add(node)
            info.tangents_closure.add(node)


def default_partition(joint: GraphModule, joint_inputs: Any, **keywords: Any) -> tuple[GraphModule, GraphModule]:
    """torch's `default_partition`, with the same random numbers as eager."""
    _read_unused_draws(joint)
    with _mended_partitioners():
        return draw_once(*partitioners.default_partition(joint, joint_inputs, **keywords))


def min_cut_partition(joint: GraphModule, joint_inputs: Any, **keywords: Any) -> tuple[GraphModule, GraphModule]:
    """torch's `min_cut_rematerialization_partition`, with the same random numbers as eager."""
    _read_unused_draws(joint)
    with _mended_partitioners():
        return draw_once(*partitioners.min_cut_rematerialization_partition(joint, joint_inputs, **keywords))


@contextmanager
def _mended_partitioners() -> Iterator[None]:
    """For the time of one call, torch's partitioners use the functions of this file in two places.

    Another thread that partitions meanwhile gets them too, which can only save it from the same mistakes.
    """
    with patching, _use_lazy_graph_module(True):  # torch generates code after each of its passes
        partitioners.fx_graph_cse = _merge_equal_nodes
        partitioners.choose_saved_values_set = _choose_savable_values
        try:
            yield
        finally:
            partitioners.fx_graph_cse = _fx_graph_cse
            partitioners.choose_saved_values_set = _choose_saved_values_set


def _choose_savable_values(graph: Graph, info: Any, memory_budget: float = 1) -> list[Node]:
    """`choose_saved_values_set`, but only draws tagged by `torch.utils.checkpoint`, which replays them, run again."""
    start = time.process_time()
    _own_draws_of_backward(graph, info)
    _keep_readers_of_mutated_inputs(graph)
    for node in graph.nodes:
        if is_random(node) and not must_recompute(node):
            node.meta.update(recompute=CheckpointPolicy.MUST_SAVE, saved_because="random")
    saved: dict[Node, None] = {}
    for node in _choose_saved_values_set(graph, info, memory_budget or TINY_BUDGET):
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


def is_tensor(node: Node) -> bool:
    """Whether a node's value is one tensor."""
    return isinstance(node.meta.get("val"), Tensor)


def storages(node: Node) -> dict[Any, int]:
    """The distinct memory of a node's tensors: identity -> bytes. Views of one another have the same identity."""
    found: dict[Any, int] = {}
    whole = node.meta.get("val")
    for value in [whole] if isinstance(whole, Tensor) else tree_leaves(whole):
        if isinstance(value, Tensor):
            try:
                storage = value.untyped_storage()
                found[storage._cdata] = _size_hint(storage.nbytes(), fallback=UNKNOWN_SIZE)
            except NotImplementedError:  # sparse and other layouts without storage
                found[id(value)] = _size_hint(value.numel(), fallback=UNKNOWN_SIZE) * value.element_size()
    return found


def is_view(node: Node, memory: Callable[[Node], Mapping[Any, int]] = storages) -> bool:
    """Whether all of a node's memory is its inputs': recomputing it moves no data.

    Args:
        memory: what `storages` gives, if that is known.
    """
    if node.target is operator.getitem:
        return is_view(node.all_input_nodes[0], memory)
    own = memory(node).keys()
    return bool(own) and own <= {storage for i in node.all_input_nodes for storage in memory(i)}


def flops(node: Node) -> int:
    """The floating-point operations of a matrix product, a convolution or attention; 0 for anything else.

    Source: the table of `torch.utils.flop_counter`. Attention is counted here as it counts most of it: all of the two
    products, masked or not, and five in the backward pass. It lacks that on a CPU, and in torch 2.11 refuses that with
    fewer heads of keys than of queries.
    """
    from torch.utils.flop_counter import flop_registry

    name = str(node.target)
    count: Any = flop_registry.get(getattr(node.target, "overloadpacket", None))
    is_attention = "scaled_dot_product" in name and "attention" in name
    if count is None and not is_attention:
        return 0
    arguments: Any = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    args, kwargs = arguments
    if is_attention:
        first = 1 if "backward" in name else 0
        query, key = args[first], args[first + 1]
        found = (10 if first else 4) * query.numel() * key.shape[-2]
    else:
        found = count(*args, **kwargs, out_val=node.meta["val"])
    return int(_size_hint(found, fallback=UNKNOWN_SIZE))
