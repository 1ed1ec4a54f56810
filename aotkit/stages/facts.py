"""What a graph is at one moment: what the stages of a compilation promise to keep of it."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node, map_arg

from aotkit.passes import (
    COPY,
    NORMALIZATIONS,
    asked_to_recompute,
    changes_inputs,
    collectives,
    is_random,
    is_symbol,
    results_of,
    views_behind,
)
from aotkit.torch_private.dispatch import pytree
from aotkit.torch_private.switches import without_autocast

RANDOM_STATES = ("fwd_rng_state", "bwd_rng_state")  # inputs that torch adds where it cuts a graph
WRITE = "write to "  # what effects begin with that are writes
DATA_DECIDE = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}


@dataclass(frozen=True)
class Kind:
    """What a value is.

    Attributes:
        name: of a tensor, its dtype and device; else its type.
        shape, strides: None for what is not known.
    """

    name: str
    shape: Sequence[int | None] = ()
    strides: Sequence[int | None] = ()

    def __str__(self) -> str:
        strides = f", strides {[*self.strides]}" if self.strides else ""
        return f"{self.name}, shape {[*self.shape]}{strides}" if "torch" in self.name else self.name


@dataclass(frozen=True)
class Facts:
    """What a graph is.

    Attributes:
        inputs: name of each -> its node, and what it is; in order.
        results: the node of each, or None, and what it is.
        memory: for each result that the caller gets, what else it is in the memory of.
        effects: what is done besides computing -> the nodes that do it.
        nodes: name of each -> what it calls, and gives.
        saved, taken: of two parts, what forward saves, integers first, and what stands for that in backward.
        together: what is done together with other processes, in order -> its node.
        records: each node -> the same as in `nodes`; of two parts, names of which may be equal, all of them.
    """

    inputs: dict[str, tuple[Node, Kind]] = field(default_factory=dict)
    results: Sequence[tuple[Any, Kind]] = ()
    memory: Sequence[str] = ()
    effects: dict[str, list[Node]] = field(default_factory=dict)
    nodes: dict[str, Any] = field(default_factory=dict)
    saved: Sequence[tuple[Any, Kind]] = ()
    taken: Sequence[tuple[Node, Kind]] = ()
    together: Sequence[tuple[str, Node]] = ()
    records: dict[Node, Any] = field(default_factory=dict)


def facts_of(gm: GraphModule, num_outputs: int) -> Facts:
    """What a graph is, of whose results the caller gets so many, the first ones."""
    results = results_of(gm)
    effects: dict[str, list[Node]] = {}
    for node in gm.graph.nodes:
        if effect := _effect(node):
            effects.setdefault(effect, []).append(node)
    records = {node: record(node) for node in gm.graph.nodes}
    return Facts(
        inputs={node.name: (node, kind_of(node)) for node in gm.graph.find_nodes(op="placeholder")},
        results=[(result, kind_of(result)) for result in results],
        memory=[*_memory(results[:num_outputs])],
        effects=effects,
        nodes={node.name: noted for node, noted in records.items()},
        together=[(_collective(node), node) for node in collectives(gm) if not asked_to_recompute(node)],
        records=records,
    )


def together(joint: Facts, forward: Facts, backward: Facts, num_outputs: int) -> Facts:
    """What both parts of a joint graph are as one."""
    given, read = (_without_random_states(part.inputs) for part in (forward, backward))
    first_tangent = max(len(read) - len(joint.inputs) + len(given), 0)
    return Facts(
        inputs=dict([*given, *read[first_tangent:]]),
        results=[*forward.results[:num_outputs], *backward.results],
        memory=forward.memory,
        effects={
            effect: [*forward.effects.get(effect, ()), *backward.effects.get(effect, ())]
            for effect in forward.effects | backward.effects
        },
        nodes=backward.nodes | forward.nodes,
        saved=sorted(forward.results[num_outputs:], key=lambda saved: not is_symbol(saved[0])),
        taken=[known for _, known in read[:first_tangent]],
        together=[*forward.together, *backward.together],
        records=forward.records | backward.records,
    )


def _without_random_states(inputs: dict[str, tuple[Node, Kind]]) -> list[tuple[str, tuple[Node, Kind]]]:
    return [(name, known) for name, known in inputs.items() if not name.startswith(RANDOM_STATES)]


def without_tokens(facts: Facts, role: str, tokens: int) -> Facts:
    """What a graph is once the tokens that keep effects in order are no inputs and results any more."""
    inputs, results = [*facts.inputs.items()], facts.results
    if role == "forward":
        inputs, results = inputs[tokens:], results[tokens:]
    else:
        inputs = [(name, known) for name, known in inputs if not name.startswith("tangents_token")]
        results = results[: len(results) - tokens]
    memory = facts.memory[tokens:]
    return replace(facts, inputs=dict(inputs), results=results, memory=memory, saved=(), taken=(), records={})


def record(node: Node) -> Any:
    """What a node calls and gives, as data to compare."""
    return node.target, str(node.args), str(node.kwargs), _kinds(value_of(node))


def value_of(node: Any) -> Any:
    """What a node is said to give; of what is no node, itself."""
    return node.meta.get("val") if isinstance(node, Node) else node


def kind_of(value: Any) -> Kind:
    """What a value, or that of a node, is. Open sizes are as they were when traced, None for those that data decide."""
    value = value_of(value)
    if not isinstance(value, Tensor):
        return Kind(type(value).__name__)
    strides = value.stride() if value.layout is torch.strided else ()
    return Kind(f"{value.dtype} on {value.device}", _numbers(value.shape), _numbers(strides))


def result_kind(value: Any) -> Kind:
    """What a graph promises of a result, and what a run returns: without strides, and open sizes may be any."""
    if not isinstance(value, Tensor):
        return kind_of(value)
    # Fused attention on CUDA returns its random seeds on the CPU, whatever torch's description of it says.
    where = f" on {value.device}" if value.dim() else ""
    return Kind(f"a tensor of {value.dtype}{where}", [n if isinstance(n, int) else None for n in value.shape])


def _kinds(value: Any) -> list[Kind]:
    return [kind_of(value)] if isinstance(value, Tensor) else [*map(kind_of, pytree.tree_leaves(value))]


def _numbers(sizes: Sequence[Any]) -> Sequence[int | None]:
    return [n if isinstance(n, int) else n.node.hint for n in sizes]


def differ(a: Kind, b: Kind, strides: bool = False) -> bool:
    """Whether two kinds are different for certain.

    Args:
        strides: whether to compare these, too.
    """
    if a.name != b.name or len(a.shape) != len(b.shape):
        return True
    pairs = [*zip(a.shape, b.shape, strict=True), *(zip(a.strides, b.strides, strict=False) if strides else ())]
    return any(None not in pair and len({*pair}) > 1 for pair in pairs)


def _memory(outputs: Sequence[Any]) -> Iterator[str]:
    first: dict[Node, int] = {}
    for i, output in enumerate(outputs):
        if not isinstance(value_of(output), Tensor):
            yield "nothing else"
            continue
        base = _base(output)
        back = i - first.setdefault(base, i)  # a distance, as tokens do not stay among the outputs
        if base.op == "placeholder":
            yield f"input {base.name}"
        else:
            yield f"the output {back} before it" if back else "nothing else"


def _base(node: Node) -> Node:
    """The tensor that a node is a view of; a copy of an input that may change counts as that."""
    base = next(n for n in views_behind(node) if isinstance(value_of(n), Tensor))
    return _base(base.all_input_nodes[0]) if COPY in base.meta else base


def _effect(node: Node) -> str:
    """What a node does besides computing tensors from tensors, if anything."""
    if node.op != "call_function":
        return ""
    if changes_inputs(node) and isinstance(node.args[0], Node):
        return f"{WRITE}{views_behind(node.args[0])[0].name} by {node.target}"
    if is_random(node):  # another operator may draw the same: one that keeps the generator's state, or fused attention
        return "draw of random numbers"
    if node.target is torch.ops.higher_order.with_effects:
        return str(node.args[1])
    return str(node.target) if node.is_impure(impure_random=False) else ""


def _collective(node: Node) -> str:
    """What processes do together at a node, but for the values."""
    told = [str(a) for a in (*node.args, *node.kwargs.values()) if not isinstance(a, Node | list | tuple)]
    given = [str(kind) for i in node.all_input_nodes for kind in _kinds(value_of(i))]
    return f"{node.target} ({', '.join([*told, *given])})"


def derived(node: Node) -> Sequence[Kind]:
    """What a node gives by torch's own account of its operator; nothing where that is not certain.

    Raises:
        Exception: the operator does not take such inputs.
    """
    target: Any = node.target
    is_certain = getattr(target, "namespace", "") in ("aten", "prims") and target not in NORMALIZATIONS
    modes = [v.fake_mode for v in pytree.tree_leaves(value_of(node)) if hasattr(v, "fake_mode")]
    if not is_certain or not modes or changes_inputs(node) or not DATA_DECIDE.isdisjoint(target.tags):
        return ()
    if not all(map(_is_known, node.all_input_nodes)):
        return ()
    args, kwargs = map_arg((node.args, node.kwargs), value_of)
    with ExitStack() as stack:
        for context in (modes[0], torch.no_grad(), without_autocast()):
            stack.enter_context(context)
        if modes[0].shape_env is not None:
            stack.enter_context(modes[0].shape_env.suppress_guards())
        return _kinds(target(*args, **kwargs))


def _is_known(node: Node) -> bool:
    """Whether a node's value is noted, and is no real tensor, as constants are."""
    values = pytree.tree_leaves(value_of(node))
    return "val" in node.meta and not any(isinstance(v, Tensor) and not hasattr(v, "fake_mode") for v in values)
