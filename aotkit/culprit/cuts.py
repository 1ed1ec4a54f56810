"""Hand pieces of a joint graph to a partitioner, and compare the two parts with the whole."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit import aot
from aotkit.checking import Budget, CheckReport, Plan, at_once, checker, run_on_copies
from aotkit.culprit.joint_pieces import joint_piece
from aotkit.culprit.reference import Reference
from aotkit.culprit.subgraphs import Step, live_values, nodes_of
from aotkit.culprit.trials import values_of
from aotkit.inspection import output_nodes
from aotkit.interfaces import Partitioner

# A partition costs a few runs of a small graph.
MOST_PARTITIONS = 80


@dataclass(frozen=True)
class Cut:
    """A joint graph that a partitioner gets wrong.

    Attributes:
        inputs: what it was run on.
        report: how the parts differed from the whole.
    """

    joint: GraphModule
    inputs: Sequence[Tensor]
    num_fwd_outputs: int
    report: CheckReport


class Cuts:
    """Attempts to make a partitioner fail on pieces of a joint graph.

    Attributes:
        joint: the graph.
        left: how many more attempts there may be.
    """

    def __init__(
        self,
        joint: GraphModule,
        inputs: Sequence[Tensor],
        random: Sequence[Tensor],
        partition: Partitioner,
        budget: Budget,
    ) -> None:
        self.joint = joint
        self._inputs = inputs
        self._random = random
        self._partition = partition
        self._budget = budget
        self.left = MOST_PARTITIONS

    def outputs(self, steps: Sequence[Step]) -> list[Node]:
        """The values that are used outside of these steps, and the inputs that the whole graph returns."""
        returned = [n for n in output_nodes(self.joint) if n is not None and n.op == "placeholder"]
        return [*live_values(self.joint, nodes_of(steps)), *dict.fromkeys(returned)]

    def piece(self, steps: Sequence[Step], outputs: Sequence[Node] | None = None) -> Cut | None:
        """A joint graph of these steps, on the reference's values; None if it is right, or no attempts are left.

        Args:
            outputs: what it returns; by default `outputs(steps)`.
        """
        if not self.left or self._budget.is_used_up:
            return None
        self.left -= 1
        try:
            return self._piece(steps, outputs)
        except Exception:  # a piece that the partitioner cannot take tells nothing
            return None

    def _piece(self, steps: Sequence[Step], outputs: Sequence[Node] | None) -> Cut | None:
        piece = joint_piece(self.joint, nodes_of(steps), self.outputs(steps) if outputs is None else outputs)
        if piece is None:
            return None
        inputs = values_of(self.joint, self._inputs, self._random, piece.inputs)
        report = self._report(piece.gm, inputs, self._partition, piece.num_fwd_outputs)
        if report.passed or not self._has_right_cut(piece.gm, inputs, piece.num_fwd_outputs):
            return None
        return Cut(piece.gm, inputs, piece.num_fwd_outputs, report)

    def _has_right_cut(self, joint: GraphModule, inputs: Sequence[Tensor], num_fwd_outputs: int) -> bool:
        from aotkit.partitioners.default import partition

        return self._report(joint, inputs, partition, num_fwd_outputs).passed

    def _report(
        self, joint: GraphModule, inputs: Sequence[Tensor], partition: Partitioner, num_fwd_outputs: int
    ) -> CheckReport:
        with aot.random_state():
            aot.set_random_states(self._random)
            return replay_partition(joint, inputs, partition, num_fwd_outputs, self._budget)


def replay_partition(
    joint: GraphModule,
    inputs: Sequence[Tensor],
    partition: Partitioner,
    num_fwd_outputs: int,
    limit: Budget | None = None,
) -> CheckReport:
    """Partition one joint graph, and compare what the two parts compute with the whole; the check is aotkit's own.

    All three are run operator by operator. Random operators draw the same numbers. The graph is left as it is.

    Args:
        inputs: primals, then tangents.
        num_fwd_outputs: how many of the graph's outputs are the function's; the others are gradients.
        limit: time of which the check takes its own.
    """
    num_primals = len(inputs) - len(aot.tangents_of(joint))

    def whole(tensors: list[Tensor]) -> list[Any]:
        return _apart(Reference(joint, inputs).run(*tensors))

    with torch.no_grad(), aot.without_autocast():
        plan = Plan(aot.generators_of(joint))
        want = run_on_copies(at_once(whole), inputs, plan)
        with aot.random_state():
            forward, backward = aot.partition_alone(partition, aot.copy_graph(joint), inputs, num_fwd_outputs)

        def cut(tensors: list[Tensor]) -> list[Any]:
            results = Reference(forward, inputs[:num_primals]).run(*tensors[:num_primals])
            saved = results[num_fwd_outputs:]
            second = Reference(backward, [*saved, *inputs[num_primals:]])
            return _apart([*results[:num_fwd_outputs], *second.run(*saved, *tensors[num_primals:])])

        names = [n.name for n in joint.graph.find_nodes(op="placeholder")]
        return checker.check(
            "the partition", names, at_once(cut), at_once(whole), inputs, want, plan, layouts=False, limit=limit
        )


def _apart(results: Sequence[Any]) -> list[Any]:
    """Each in memory of its own: what shares memory is up to AOTAutograd."""
    return [value.clone() if isinstance(value, Tensor) else value for value in results]
