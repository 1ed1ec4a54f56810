"""What each walk over a row computes, and what it holds for later ones."""

from collections.abc import Iterable, Sequence

from aotkit.backends.fuser.cpp_operations import COST
from aotkit.backends.fuser.cpp_schedule import Schedule
from aotkit.backends.fuser.kernels import Kernel, Partial, Store
from aotkit.backends.fuser.loops import Node
from aotkit.backends.fuser.values import below

WORTH_HOLDING = 8  # additions, about, that computing a value anew takes


class Walk:
    """One walk over a row.

    Attributes:
        sums: reductions that it computes.
        stores: what it writes.
        added: what it adds to sums of rows.
        held: values that later walks need.
    """

    def __init__(self, sums: Sequence[Node], stores: Sequence[Store], added: Sequence[Partial]) -> None:
        self.sums, self.stores, self.added = list(sums), list(stores), list(added)
        self.held: list[Node] = []

    @property
    def anchors(self) -> list[Node]:
        return [*(n.args[0] for n in self.sums), *(s.node for s in self.stores), *(p.node.args[0] for p in self.added)]


def reductions_of(kernel: Kernel) -> list[Node]:
    """What is computed along rows, of shared rows, too."""
    parts = [p.node for p in kernel.partials if not kernel.summed]
    return [*kernel.reductions, *(n for n in parts if n not in kernel.reductions)]


def spans(kernel: Kernel, schedule: Schedule, axes: Iterable[int]) -> bool:
    """Whether a tensor with these axes has those within a row."""
    return kernel.inner is None or not schedule.within.isdisjoint(axes)


def walks(kernel: Kernel, schedule: Schedule, row_bytes: int) -> list[Walk]:
    """Each reduction after those that it needs, each store as early as may be."""
    summed = [p for p in kernel.partials if kernel.summed]
    reductions = reductions_of(kernel)
    when: dict[Node, int] = {}
    for n in below([*reductions, *(s.node for s in kernel.stores), *(p.node.args[0] for p in summed)]):
        when[n] = max((when[x] for x in n.args), default=0) + (n in reductions)
    stores = [s for s in kernel.stores if spans(kernel, schedule, dict(s.axes))]
    added = [p for p in summed if spans(kernel, schedule, p.node.args[0].axes)]
    ends = [*reductions, *(s.node for s in stores), *(p.node.args[0] for p in added)]
    found = []
    for step in range(max((when[n] for n in ends), default=-1) + 1):
        walk = Walk(
            [n for n in reductions if when[n] == step + 1],
            [s for s in stores if when[s.node] == step],
            [p for p in added if when[p.node.args[0]] == step],
        )
        if walk.anchors:
            found.append(walk)
    _hold(found, {*reductions}, schedule, row_bytes, schedule.held - row_bytes * len(summed))
    return found


def _hold(walks: list[Walk], reductions: set[Node], schedule: Schedule, row_bytes: int, room: int) -> None:
    """Which values a walk holds for a later one, as far as a thread has room."""
    first: dict[Node, Walk] = {}
    cost: dict[Node, int] = {}

    def worth(node: Node) -> int:
        """Additions that computing a value takes, of what is constant within a row, about."""
        if node not in cost:
            own = 0
            if node.axes & schedule.within and node not in reductions:
                own = COST.get(node.data, 1) if node.kind == "operation" else 1 + 10 * bool(node.args)
                own += sum(map(worth, node.args))
            cost[node] = own
        return cost[node]

    for walk in walks:
        pending, seen = walk.anchors, set[Node]()
        while pending:
            n = pending.pop()
            if n in seen or not n.axes & schedule.within or n in reductions:
                continue
            if n in first and schedule.lane in n.axes and worth(n) >= WORTH_HOLDING:
                if n not in first[n].held and room >= row_bytes:
                    first[n].held.append(n)
                    room -= row_bytes
                if n in first[n].held:
                    continue
            seen.add(n)
            pending += n.args
        for n in seen:
            first.setdefault(n, walk)
