"""Faults that no graph compiler made: of the partitioner, the joint pass, the decompositions or the trace."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.checking import Budget, CheckReport, checksum, pieces
from aotkit.culprit.parts import Part, Recorder, Reference
from aotkit.culprit.pieces import reached, steps_of
from aotkit.culprit.replay import as_graphs_run, compared, values_of
from aotkit.culprit.result import Culprit, NotFound
from aotkit.culprit.script import partitioner_script
from aotkit.culprit.search import partitions, smallest_cut
from aotkit.passes import copy_graph, producer, source_line
from aotkit.torch_private.dispatch import OperatorMode, tree_leaves

if TYPE_CHECKING:
    from aotkit.capture import Recipe

# What a backend does to the joint graph, and what does nothing in its place.
STAGES: dict[str, dict[str, Any]] = {"joint pass": {"joint_pass": None}, "decompositions": {"decompositions": {}}}
# Numbers of a sketch. Each is a sum of all elements with other weights: rounding changes it as much as it changes an
# element, and two different tensors agree in all of them by an accident that none of us will see.
SUMS = 4
ROUNDING = 64  # in units of the type's precision: what a trace may round otherwise, as in another order of factors
MOST_ROUNDING = 0.1


def wrong_before_compilers(
    recipe: "Recipe",
    parts: Mapping[str, Part],
    attempt: Callable[["Recipe"], CheckReport],
    run_eager: Callable[[], object],
    budget: Budget,
) -> Culprit:
    """What is wrong where the reference, run on both graphs, differs from eager.

    One stage after the other is replaced by a trusted one, or left out, until the check passes.

    Args:
        parts: the recorded graphs of the recipe.
        attempt, run_eager, budget: as for `find`.

    Raises:
        NotFound: the trace itself differs from eager, but not every time.
    """
    keeper = _JointKeeper()
    recorder = Recorder()
    trusted = replace(recipe, backend=recorder.backend(recipe.backend), partition=keeper)
    if attempt(trusted).passed:
        return _wrong_cut(recipe, parts, keeper, budget)
    for stage, nothing in STAGES.items():
        if any(getattr(recipe.backend, attribute) for attribute in nothing):
            trusted = replace(trusted, backend=replace(trusted.backend, **nothing))
            if attempt(trusted).passed:
                return Culprit(stage)
    if attempt(trusted).passed:
        raise NotFound("the graphs differ from eager without any compiler, but not every time")
    return _wrong_trace(keeper.part(recorder.parts), run_eager)


class _JointKeeper:
    """torch's default partitioner; keeps a copy of the joint graph, and how many of its outputs are the function's."""

    def __init__(self) -> None:
        self.joint: GraphModule | None = None
        self.num_outputs = 0

    def __call__(
        self, joint: GraphModule, joint_inputs: Any, /, *, num_fwd_outputs: int, **kwargs: Any
    ) -> tuple[GraphModule, GraphModule]:
        from aotkit.joint import default_partition

        self.joint, self.num_outputs = copy_graph(joint), num_fwd_outputs
        return default_partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)

    def part(self, parts: Mapping[str, Part]) -> Part:
        """The graph that was traced, with the inputs that its parts got."""
        if self.joint is None:
            return parts["inference_compiler"]
        forward, backward = parts["fw_compiler"], parts["bw_compiler"]
        values = forward.inputs_by_name() | backward.inputs_by_name()
        joint = Part("joint graph", self.joint, random=forward.random)
        joint.inputs = [values[name] for name in joint.names]
        return joint


def _wrong_cut(recipe: "Recipe", parts: Mapping[str, Part], keeper: _JointKeeper, budget: Budget) -> Culprit:
    """The first node of the two graphs whose value is not that of the joint graph's node of the same name."""
    joint, forward, backward = keeper.part(parts), parts["fw_compiler"], parts["bw_compiler"]
    in_joint = {n.name: n for n in joint.gm.graph.nodes if isinstance(n.meta.get("val"), Tensor)}
    nodes = [n for part in (forward, backward) for n in part.gm.graph.nodes if n.name in in_joint]
    saved = len(forward.gm.graph.output_node().args[0]) - keeper.num_outputs  # type: ignore[arg-type]

    def whole(tensors: list[Tensor]) -> list[Any]:
        run = Reference(joint.gm, in_joint.values())
        run.run(*tensors)
        return [run.values[in_joint[n.name]] for n in nodes]

    def cut(tensors: list[Tensor]) -> list[Any]:
        given = dict(zip(joint.names, tensors, strict=True))
        first = Reference(forward.gm, nodes)
        results = first.run(*(given[n] for n in forward.names))
        second = Reference(backward.gm, nodes)
        second.run(*results[keeper.num_outputs :], *(given[n] for n in backward.names[saved:]))
        return [(first.values | second.values)[n] for n in nodes]

    with as_graphs_run(joint.random):
        report = compared("the cut", joint.gm, joint.inputs, cut, whole, budget)
    named = {f"output {i}": node for i, node in enumerate(nodes)}
    wrong = [(named[c.what], c.problem) for c in report.comparisons if c.problem and c.what in named]
    culprit = _described(*wrong[0]) if wrong else Culprit("partition")
    node = in_joint[culprit.node] if culprit.node else None
    found = smallest_cut(partitions(joint, recipe.partition, budget), steps_of(joint.gm), node)
    if found is None or budget.is_used_up:
        return culprit
    return replace(culprit, graph=found.gm, script=partitioner_script(culprit, recipe, found))


def _described(node: Node, problem: str) -> Culprit:
    operator = str(node.target) if node.op == "call_function" else "a saved value"
    return Culprit("partition", node.name, operator, source_line(node), problem)


def _wrong_trace(traced: Part, run_eager: Callable[[], object]) -> Culprit:
    """The first operation whose value eager computes nowhere, of those that make a result wrong.

    A trace may take another way to the same results, by values that eager does not have: an operator that eager has a
    kernel for, writes that become copies. So it is looked at from the results backwards, as far as values are unknown.

    Args:
        traced: the graph as traced, of forward and backward.
        run_eager: runs the function forward and backward in eager, on the same inputs.
    """
    eager = _Computed()
    with eager:
        run_eager()
    known = _Known(eager.seen)
    graph = traced.gm.graph
    nodes = [n for n in graph.nodes if n.op == "call_function" and isinstance(n.meta.get("val"), Tensor)]
    is_known = values_of(traced, nodes, keep=lambda value: known.has(_sketch(value)))
    # Eager's dropout keeps another mask: what eager has one result of, it has run.
    ran = {producer(n) for n in nodes if is_known[n]}
    unknown = {n for n in nodes if not is_known[n] and producer(n) not in ran}
    leading = reached(
        unknown.intersection(graph.output_node().all_input_nodes),
        lambda n: unknown.intersection(producer(n).all_input_nodes),
    )
    for node in nodes:
        if node in leading and unknown.isdisjoint(producer(node).all_input_nodes):
            difference = "eager computes what it reads, and nowhere its value"
            return Culprit("trace", node.name, str(producer(node).target), source_line(node), difference)
    return Culprit("trace")


Kind = tuple[Any, ...]  # the dtype first
Sketch = tuple[Kind, tuple[float, ...]]


def _sketch(value: Tensor) -> Sketch:
    """The kind of a tensor, with its norm and sums that depend on all elements; whole numbers are of their own kind."""
    kind = value.dtype, tuple(value.shape)
    if not value.is_floating_point() or value.is_meta or value.layout is not torch.strided:
        return (*kind, checksum(value)), ()
    sums, square, start = [0.0] * SUMS, 0.0, 0
    for (part,) in pieces(value.detach()):
        flat = part.double().nan_to_num(0.0, 0.0, 0.0)
        places = torch.arange(start, start + flat.numel(), dtype=torch.float64, device=flat.device)
        for i in range(SUMS):
            sums[i] += float((flat * (places * (i + 1) + i).cos()).sum())
        square += float((flat * flat).sum())
        start += flat.numel()
    return kind, (math.sqrt(square), *sums)


class _Known:
    """Tensors that have been seen, but for rounding."""

    def __init__(self, sketches: Iterable[Sketch]) -> None:
        self._by_kind: dict[Kind, list[tuple[float, ...]]] = defaultdict(list)
        for kind, numbers in sketches:
            self._by_kind[kind].append(numbers)

    def has(self, sketch: Sketch) -> bool:
        kind, numbers = sketch
        if not numbers:
            return kind in self._by_kind
        share = min(ROUNDING * torch.finfo(kind[0]).eps, MOST_ROUNDING)
        others = self._by_kind.get(kind, ())
        return any(all(abs(a - b) <= share * numbers[0] for a, b in zip(numbers, o, strict=True)) for o in others)


class _Computed(OperatorMode):  # type: ignore[no-untyped-call]
    """Keeps a sketch of each tensor that an operator reads or returns, in forward and backward passes.

    What is written in parts is known whole only when it is read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[Sketch] = set()

    def operator(self, func: Any, types: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        self._see(args)
        result = func(*args, **kwargs)
        self._see(result)
        return result

    def _see(self, values: Any) -> None:
        self.seen.update(_sketch(value) for value in tree_leaves(values) if isinstance(value, Tensor))
