"""Hand pieces of a graph to a compiler or a partitioner, to see which it gets wrong."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.checking import Budget, CheckReport
from aotkit.culprit.parts import Part, copies_apart
from aotkit.culprit.pieces import Piece, Step, joint_piece, live_values, nodes_of, piece_of
from aotkit.culprit.replay import as_graphs_run, replay, replay_partition, values_of
from aotkit.culprit.result import NotFound, ensure_time
from aotkit.inspection.nodes import output_nodes
from aotkit.interfaces import GraphCompiler, Partitioner

# Enough to bisect a million nodes, and for twenty attempts to make the graph smaller.
MOST_COMPILATIONS = 40
# A partition costs a few runs of a small graph.
MOST_PARTITIONS = 80


@dataclass(frozen=True)
class Wrong:
    """A graph that a compiler, or a joint graph that a partitioner, gets wrong.

    Attributes:
        inputs: what it was run on.
        report: how what became of it differed.
        num_fwd_outputs: how many outputs of a joint graph are no gradients.
    """

    gm: GraphModule
    inputs: Sequence[Tensor]
    report: CheckReport
    num_fwd_outputs: int


class Attempts:
    """Attempts to find pieces of a part that become wrong.

    Args:
        cut_out: makes a piece of some nodes, with some outputs. What it, or `judge`, raises tells nothing.
        judge: the report on a piece and its inputs.
        returned: nodes of the part that each piece returns, too.

    Attributes:
        part: the part.
        budget: the time for all of them.
        left: how many more there may be.
    """

    def __init__(
        self,
        part: Part,
        budget: Budget,
        cut_out: Callable[[GraphModule, Collection[Node], Sequence[Node | None]], Piece],
        judge: Callable[[Piece, Sequence[Tensor]], CheckReport],
        left: int,
        returned: Sequence[Node] = (),
    ) -> None:
        self.part = part
        self.budget = budget
        self._cut_out = cut_out
        self._judge = judge
        self.left = self._most = left
        self._returned = returned

    def whole(self) -> Wrong | None:
        """The part itself, if it is wrong."""
        return self._attempt(lambda: (Piece(self.part.gm, []), self.part.inputs))

    def outputs(self, steps: Sequence[Step]) -> list[Node]:
        """The values that are used outside of these steps."""
        return [*live_values(self.part.gm, nodes_of(steps)), *self._returned]

    def piece(self, steps: Sequence[Step], outputs: Sequence[Node | None] | None = None) -> Wrong | None:
        """A graph of these steps, on the reference's values; None if it is right.

        Args:
            outputs: what it returns; by default `outputs(steps)`.

        Raises:
            NotFound: there were too many attempts, or there is no time for another.
        """
        returned = self.outputs(steps) if outputs is None else outputs
        if all(n is None for n in returned):
            return None

        def make() -> tuple[Piece, Sequence[Tensor]]:
            piece = self._cut_out(self.part.gm, nodes_of(steps), returned)
            values = values_of(self.part, piece.inputs)
            return piece, copies_apart(values[n] for n in piece.inputs)

        return self._attempt(make)

    def _attempt(self, make: Callable[[], tuple[Piece, Sequence[Tensor]]]) -> Wrong | None:
        ensure_time(self.budget)
        if not self.left:
            raise NotFound(f"{self._most} compilations did not suffice to find the first wrong node")
        self.left -= 1
        try:
            piece, inputs = make()
            with as_graphs_run(self.part.random):
                report = self._judge(piece, inputs)
        except Exception:
            return None
        if report.undecided:
            ensure_time(self.budget)
        return None if report.passed else Wrong(piece.gm, inputs, report, piece.num_fwd_outputs)


def compilations(part: Part, compiler: GraphCompiler, budget: Budget) -> Attempts:
    """Attempts to make a compiler fail."""

    def judge(piece: Piece, inputs: Sequence[Tensor]) -> CheckReport:
        return replay(piece.gm, inputs, compiler, budget)

    return Attempts(part, budget, piece_of, judge, MOST_COMPILATIONS)


def partitions(joint: Part, partition: Partitioner, budget: Budget) -> Attempts:
    """Attempts to make a partitioner fail, on pieces that torch's default partitioner cuts rightly."""
    from aotkit.partitioners.default import partition as default_partition

    def judge(piece: Piece, inputs: Sequence[Tensor]) -> CheckReport:
        report = replay_partition(piece.gm, inputs, partition, piece.num_fwd_outputs, budget)
        if report.passed or replay_partition(piece.gm, inputs, default_partition, piece.num_fwd_outputs, budget).passed:
            return report
        raise NotFound("every cut of it is wrong")

    returned = [n for n in output_nodes(joint.gm) if n is not None and n.op == "placeholder"]
    return Attempts(joint, budget, joint_piece, judge, MOST_PARTITIONS, list(dict.fromkeys(returned)))
