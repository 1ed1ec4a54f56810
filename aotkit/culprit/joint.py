"""Faults that no graph compiler made: of the partitioner, the joint pass, the decompositions or the trace."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit import aot
from aotkit.checking import Budget, CheckReport, Plan, at_once, checker, run_on_copies
from aotkit.culprit.cuts import Cuts
from aotkit.culprit.minimise import smallest_cut
from aotkit.culprit.parts import Part, Recorder
from aotkit.culprit.reference import Reference
from aotkit.culprit.result import Culprit, NotFound
from aotkit.culprit.script import partitioner_script
from aotkit.culprit.subgraphs import steps_of
from aotkit.culprit.tracing import wrong_trace
from aotkit.inspection import source_line
from aotkit.recipe import Recipe


def wrong_before_compilers(
    recipe: Recipe,
    parts: Mapping[str, Part],
    attempt: Callable[[Recipe], CheckReport],
    run_eager: Callable[[], object],
    budget: Budget,
) -> Culprit:
    """What is wrong where the reference, run on both graphs, differs from eager.

    One stage after the other is replaced by a trusted one, or left out, until the check passes.

    Args:
        parts: the recorded graphs of the recipe.
        run_eager: runs the function in eager, as the check does.
        budget: the time for the search.

    Raises:
        NotFound: the trace itself differs from eager, but not every time.
    """
    keeper = _JointKeeper()
    recorder = Recorder()
    trusted = replace(recipe, backend=recorder.backend(recipe.backend), partition=keeper)
    if attempt(trusted).passed:
        return _wrong_cut(recipe, parts, keeper, budget)
    if recipe.backend.joint_pass is not None:
        trusted = replace(trusted, backend=replace(trusted.backend, joint_pass=None))
        if attempt(trusted).passed:
            return Culprit("joint pass")
    if recipe.backend.decompositions:
        trusted = replace(trusted, backend=replace(trusted.backend, decompositions={}))
        if attempt(trusted).passed:
            return Culprit("decompositions")
    if attempt(trusted).passed:
        raise NotFound("the graphs differ from eager without any compiler, but not every time")
    graph, inputs, random = _as_traced(recorder.parts, keeper)
    return wrong_trace(graph, inputs, random, run_eager)


class _JointKeeper:
    """torch's default partitioner; keeps a copy of the joint graph.

    Attributes:
        joint: the copy.
        num_outputs: how many of its outputs are the function's.
    """

    def __init__(self) -> None:
        self.joint: GraphModule | None = None
        self.num_outputs = 0

    def __call__(
        self, joint: GraphModule, joint_inputs: Any, /, *, num_fwd_outputs: int, **kwargs: Any
    ) -> tuple[GraphModule, GraphModule]:
        from aotkit.aot.partition import default_partition

        self.joint, self.num_outputs = aot.copy_graph(joint), num_fwd_outputs
        return default_partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)


def _wrong_cut(recipe: Recipe, parts: Mapping[str, Part], keeper: _JointKeeper, budget: Budget) -> Culprit:
    """The first node of the two graphs whose value is not that of the joint graph's node of the same name."""
    joint, forward, backward = keeper.joint, parts["fw_compiler"], parts["bw_compiler"]
    assert joint is not None  # it was partitioned
    in_joint = {n.name: n for n in joint.graph.nodes if isinstance(n.meta.get("val"), Tensor)}
    nodes = [n for part in (forward, backward) for n in part.gm.graph.nodes if n.name in in_joint]
    _, inputs, _ = _as_traced(parts, keeper)
    saved = len(forward.gm.graph.output_node().args[0]) - keeper.num_outputs  # type: ignore[arg-type]
    names = [n.name for n in joint.graph.find_nodes(op="placeholder")]

    def whole(tensors: list[Tensor]) -> list[Any]:
        run = Reference(joint, inputs, in_joint.values())
        run.run(*tensors)
        return [run.values[in_joint[n.name]] for n in nodes]

    def cut(tensors: list[Tensor]) -> list[Any]:
        given = dict(zip(names, tensors, strict=True))
        first = Reference(forward.gm, forward.inputs, nodes)
        results = first.run(*(given[n] for n in _named_inputs(forward)))
        second = Reference(backward.gm, backward.inputs, nodes)
        tangents = list(_named_inputs(backward))[saved:]
        second.run(*results[keeper.num_outputs :], *(given[n] for n in tangents))
        return [(first.values | second.values)[n] for n in nodes]

    with aot.random_state(), aot.without_autocast(), torch.no_grad():
        aot.set_random_states(forward.random)
        plan = Plan(aot.generators_of(joint))
        want = run_on_copies(at_once(whole), inputs, plan)
        report = checker.check(
            "the cut", names, at_once(cut), at_once(whole), inputs, want, plan, layouts=False, limit=budget
        )
    named = {f"output {i}": node for i, node in enumerate(nodes)}
    wrong = [(named[c.what], c.problem) for c in report.comparisons if c.problem and c.what in named]
    culprit = _described(*wrong[0]) if wrong else Culprit("partition")
    node = in_joint[culprit.node] if culprit.node else None
    found = smallest_cut(Cuts(joint, inputs, forward.random, recipe.partition, budget), steps_of(joint), node)
    if found is None or budget.is_used_up:
        return culprit
    return replace(culprit, graph=found.joint, script=partitioner_script(culprit, recipe, found))


def _as_traced(
    parts: Mapping[str, Part], keeper: _JointKeeper
) -> tuple[GraphModule, Sequence[Tensor], Sequence[Tensor]]:
    """The graph that was traced, its inputs, and the states of the random generators."""
    if (joint := keeper.joint) is None:
        part = parts["inference_compiler"]
        return part.gm, part.inputs, part.random
    forward = parts["fw_compiler"]
    values = _named_inputs(forward) | _named_inputs(parts["bw_compiler"])
    return joint, [values[n.name] for n in joint.graph.find_nodes(op="placeholder")], forward.random


def _named_inputs(part: Part) -> dict[str, Tensor]:
    return dict(zip((n.name for n in part.gm.graph.find_nodes(op="placeholder")), part.inputs, strict=True))


def _described(node: Node, problem: str) -> Culprit:
    operator = str(node.target) if node.op == "call_function" else "a saved value"
    return Culprit("partition", node.name, operator, source_line(node), problem)
