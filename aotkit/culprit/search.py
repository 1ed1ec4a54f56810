"""Hand ever smaller pieces of a graph to a compiler or a partitioner, to find the smallest that it gets wrong."""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.checking import Budget, CheckReport
from aotkit.culprit.parts import Part, copies_apart
from aotkit.culprit.pieces import Piece, Step, joint_piece, live_values, nodes_of, piece_of
from aotkit.culprit.replay import as_graphs_run, replay, replay_partition, values_of
from aotkit.culprit.result import NotFound, ensure_time
from aotkit.interfaces import GraphCompiler, Partitioner
from aotkit.passes import output_nodes

Item = TypeVar("Item")

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

    @property
    def problems(self) -> dict[str, str]:
        """How each value that differs does."""
        return {c.what: c.problem for c in self.report.comparisons if c.problem}


@dataclass
class Attempts:
    """Attempts to find pieces of a part that become wrong.

    Attributes:
        budget: the time for all of them.
        left: how many more there may be.
        cut_out: makes a piece of some nodes, with some outputs. What it, or `judge`, raises tells nothing.
        judge: the report on a piece and its inputs.
        returned: nodes of the part that each piece returns, too.
    """

    part: Part
    budget: Budget
    left: int
    cut_out: Callable[[GraphModule, Collection[Node], Sequence[Node | None]], Piece]
    judge: Callable[[Piece, Sequence[Tensor]], CheckReport]
    returned: Sequence[Node] = ()

    def whole(self) -> Wrong | None:
        """The part itself, if it is wrong."""
        return self._attempt(lambda: (Piece(self.part.gm, []), self.part.inputs))

    def outputs(self, steps: Sequence[Step]) -> list[Node]:
        """The values that are used outside of these steps."""
        return [*live_values(self.part.gm, nodes_of(steps)), *self.returned]

    def piece(self, steps: Sequence[Step], outputs: Sequence[Node | None] | None = None) -> Wrong | None:
        """A graph of these steps that returns `outputs(steps)`, or others, on the reference's values; None if right.

        Raises:
            NotFound: there were too many attempts, or there is no time for another.
        """
        returned = self.outputs(steps) if outputs is None else outputs
        if all(n is None for n in returned):
            return None

        def make() -> tuple[Piece, Sequence[Tensor]]:
            piece = self.cut_out(self.part.gm, nodes_of(steps), returned)
            values = values_of(self.part, piece.inputs)
            return piece, copies_apart(values[n] for n in piece.inputs)

        return self._attempt(make)

    def _attempt(self, make: Callable[[], tuple[Piece, Sequence[Tensor]]]) -> Wrong | None:
        ensure_time(self.budget)
        if not self.left:
            raise NotFound(f"{MOST_COMPILATIONS} compilations did not suffice to find the first wrong node")
        self.left -= 1
        try:
            piece, inputs = make()
            with as_graphs_run(self.part.random):
                report = self.judge(piece, inputs)
        except Exception:
            return None
        if report.undecided:
            ensure_time(self.budget)
        return None if report.passed else Wrong(piece.gm, inputs, report, piece.num_fwd_outputs)


def compilations(part: Part, compiler: GraphCompiler, budget: Budget) -> Attempts:
    """Attempts to make a compiler fail."""

    def judge(piece: Piece, inputs: Sequence[Tensor]) -> CheckReport:
        return replay(piece.gm, inputs, compiler, budget)

    return Attempts(part, budget, MOST_COMPILATIONS, piece_of, judge)


def partitions(joint: Part, partition: Partitioner, budget: Budget) -> Attempts:
    """Attempts to make a partitioner fail, on pieces that torch's default partitioner cuts rightly."""
    from aotkit.joint import default_partition

    def judge(piece: Piece, inputs: Sequence[Tensor]) -> CheckReport:
        report = replay_partition(piece.gm, inputs, partition, piece.num_fwd_outputs, budget)
        if report.passed or replay_partition(piece.gm, inputs, default_partition, piece.num_fwd_outputs, budget).passed:
            return report
        raise NotFound("every cut of it is wrong")

    returned = [n for n in output_nodes(joint.gm) if n is not None and n.op == "placeholder"]
    return Attempts(joint, budget, MOST_PARTITIONS, joint_piece, judge, list(dict.fromkeys(returned)))


def first_wrong_prefix(attempts: Attempts, steps: Sequence[Step]) -> tuple[Sequence[Step], Wrong] | None:
    """The shortest prefix that is compiled wrongly; None if not even the prefix of all steps is.

    A prefix returns whatever the rest of the graph reads. A wrong value that reaches an output passes through every cut
    on its way there, so from the first wrong node on all prefixes are wrong, and bisection finds it.
    """
    if (wrong := attempts.piece(steps)) is None:
        return None
    right, end = 0, len(steps)
    while end - right > 1:
        middle = (right + end) // 2
        if (found := attempts.piece(steps[:middle])) is None:
            right = middle
        else:
            end, wrong = middle, found
    return steps[:end], wrong


def smallest(attempts: Attempts, steps: Sequence[Step], wrong: Wrong) -> tuple[Sequence[Step], Wrong]:
    """The smallest wrong piece found in a wrong prefix: its last step alone, or some of what that depends on.

    The last of its steps is the culprit. It is another than the prefix's where a wrong value shows only some steps
    later, because it is among others that rounding changes, such as whether two numbers are equal.
    """
    with suppress(NotFound):  # no attempts are left
        if (alone := attempts.piece(steps[-1:])) is not None:
            steps, wrong = steps[-1:], alone
        else:
            steps, wrong = _neighbourhood(attempts, steps, steps[-1], lambda n: n.all_input_nodes, wrong)
            steps, wrong = left_out(attempts.piece, steps, wrong)
        outputs = attempts.outputs(steps)
        wrong_outputs = [node for i, node in enumerate(outputs) if f"output {i}" in wrong.problems]
        if len(outputs) > 1 and wrong_outputs:
            wrong = attempts.piece(steps, wrong_outputs[:1]) or wrong
    return steps, wrong


def smallest_cut(attempts: Attempts, steps: Sequence[Step], node: Node | None) -> Wrong | None:
    """The smallest joint graph found that is partitioned wrongly, near a node if one is known; None if all is right."""
    wrong = None
    with suppress(NotFound):
        if (wrong := attempts.piece(steps)) is None:
            return None
        if node is not None:
            steps, wrong = _neighbourhood(attempts, steps, [node], lambda n: [*n.all_input_nodes, *n.users], wrong)
        steps, wrong = left_out(attempts.piece, steps, wrong)
        wrong = left_out(lambda fewer: attempts.piece(steps, fewer), attempts.outputs(steps), wrong)[1]
    return wrong


def _neighbourhood(
    attempts: Attempts,
    steps: Sequence[Step],
    centre: Sequence[Node],
    neighbours: Callable[[Node], Iterable[Node]],
    wrong: Wrong,
) -> tuple[Sequence[Step], Wrong]:
    """Some nodes and what is near them, over ever more steps."""
    distance, before = 1, sum(not set(centre).isdisjoint(step) for step in steps)
    while True:
        near = set(centre)
        for _ in range(distance):
            near |= {n for node in near for n in neighbours(node)}
        kept = [step for step in steps if not near.isdisjoint(step)]
        if len(kept) == before:
            return steps, wrong
        if (found := attempts.piece(kept)) is not None:
            return kept, found
        distance, before = 2 * distance, len(kept)


def left_out(
    attempt: Callable[[Sequence[Item]], Wrong | None], items: Sequence[Item], wrong: Wrong
) -> tuple[Sequence[Item], Wrong]:
    """Leave out what can be left out, in halves, quarters, ... and at last one by one, while there are attempts."""
    size = len(items) // 2
    with suppress(NotFound):
        while size:
            end = len(items)
            while end > 0 and len(items) > 1:
                fewer = [*items[: max(end - size, 0)], *items[end:]]
                if fewer and (found := attempt(fewer)) is not None:
                    items, wrong = fewer, found
                end -= size
            size //= 2
    return items, wrong
