"""Hand pieces of a graph to a compiler, and compare what it makes of them with the reference."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.checking import Budget, CheckReport, Plan, at_once, checker, copy_inputs, run_on_copies
from aotkit.culprit.parts import Part
from aotkit.culprit.reference import Reference
from aotkit.culprit.result import NotFound, ensure_time
from aotkit.culprit.subgraphs import Step, extract, inputs_of, live_values, nodes_of
from aotkit.interfaces import GraphCompiler
from aotkit.passes import copy_graph, generators_of
from aotkit.random import random_state, set_random_states
from aotkit.torch_private.aotautograd import compile_alone
from aotkit.torch_private.switches import without_autocast

# Enough to bisect a million nodes, and for twenty attempts to make the graph smaller.
MOST_COMPILATIONS = 40


@dataclass(frozen=True)
class Trial:
    """A graph that a compiler gets wrong.

    Attributes:
        inputs: what it was run on.
        report: how it differed.
    """

    gm: GraphModule
    inputs: Sequence[Tensor]
    report: CheckReport


class Trials:
    """Attempts to make a compiler fail on pieces of a part.

    Attributes:
        part: the part.
        budget: the time for all of them.
        left: how many more attempts there may be.
    """

    def __init__(self, part: Part, compiler: GraphCompiler, budget: Budget) -> None:
        self.part = part
        self.budget = budget
        self._compiler = compiler
        self.left = MOST_COMPILATIONS

    def whole(self) -> Trial | None:
        """The part itself, if it is wrong."""
        return self.attempt(self.part.gm, self.part.inputs)

    def piece(self, steps: Sequence[Step], outputs: Sequence[Node | None] | None = None) -> Trial | None:
        """A graph of these steps, on the reference's values; None if it is right.

        Args:
            outputs: what it returns; by default all that is used outside of it.
        """
        nodes = nodes_of(steps)
        outputs = live_values(self.part.gm, nodes) if outputs is None else outputs
        if all(n is None for n in outputs):
            return None
        inputs = inputs_of(self.part.gm, nodes, [n for n in outputs if n is not None])
        gm = extract(self.part.gm, nodes, outputs, [(n, n.name) for n in inputs])
        return self.attempt(gm, values_of(self.part.gm, self.part.inputs, self.part.random, inputs))

    def attempt(self, gm: GraphModule, inputs: Sequence[Tensor]) -> Trial | None:
        """A graph on these inputs, if it is wrong.

        Raises:
            NotFound: there were too many attempts, or there is no time for another.
        """
        ensure_time(self.budget)
        if not self.left:
            raise NotFound(f"{MOST_COMPILATIONS} compilations did not suffice to find the first wrong node")
        self.left -= 1
        with random_state():
            set_random_states(self.part.random)
            try:
                report = replay(gm, inputs, self._compiler, self.budget)
            except Exception:  # a piece that the compiler cannot take tells nothing
                return None
        if report.undecided:
            ensure_time(self.budget)
        return None if report.passed else Trial(gm, inputs, report)


def values_of(
    gm: GraphModule, inputs: Sequence[Tensor], random: Sequence[Tensor], nodes: Sequence[Node]
) -> list[Tensor]:
    """The reference's values of nodes, each in memory of its own.

    Args:
        random: the states of the random generators.
    """
    reference = Reference(gm, inputs, nodes)
    with random_state(), without_autocast(), torch.no_grad():
        set_random_states(random)
        plan = Plan(generators_of(gm))
        run_on_copies(at_once(lambda tensors: reference.run(*tensors)), inputs, plan)
        return [copy_inputs([reference.values[n]])[1][0] for n in nodes]


def replay(
    gm: GraphModule, inputs: Sequence[Tensor], compiler: GraphCompiler, limit: Budget | None = None
) -> CheckReport:
    """Compile one graph, and compare what it computes with its operators run one by one; the check is aotkit's own.

    Random operators draw the same numbers in both. The graph is left as it is. How results are laid out is up to the
    compiler: they may be of the middle of a graph.

    Args:
        limit: time of which the check takes its own.
    """

    def reference(tensors: list[Tensor]) -> Any:
        return list(Reference(gm, inputs).run(*tensors))

    names = [n.name for n in gm.graph.find_nodes(op="placeholder")]
    with torch.no_grad(), without_autocast():
        plan = Plan(generators_of(gm))
        want = run_on_copies(at_once(reference), inputs, plan)
        run = compile_alone(compiler, copy_graph(gm), inputs)

        def compiled(tensors: list[Tensor]) -> Any:
            return list(run(tensors) if getattr(run, "_boxed_call", False) else run(*tensors))

        runs = at_once(compiled), at_once(reference)
        return checker.check("the compiled graph", names, *runs, inputs, want, plan, layouts=False, limit=limit)
