"""How kernels for CPUs are planned and laid out: which axis is that of vectors, and what a thread does at a time."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from aotkit.backends.fuser.cpp_operations import COST
from aotkit.backends.fuser.kernels import Kernel
from aotkit.backends.fuser.loops import Loops, Node
from aotkit.backends.fuser.plan import Plan
from aotkit.backends.fuser.schedule import layout
from aotkit.backends.fuser.values import below

MOST_LANES = 16  # of a vector
CHUNK = 4096  # elements in a row that are walked, and added up, at a time
WIDTH = 512  # of a block of columns
PARTS = 64  # at most, of a row, or of rows that are added up; as many for any number of threads
PART = 32768  # elements, at least
THREAD = 2**18  # additions that another thread is worth
HELD = 2**18  # bytes of a thread's own
VECTORS = 4  # at a time, along a row

# Schedules around the model's own choice, to be measured on request: factors of what that chose.
PREFERENCES: Mapping[str, Mapping[str, float]] = {
    "one vector": {"vectors": 1 / VECTORS},
    "fewer vectors": {"vectors": 0.5},
    "more vectors": {"vectors": 2},
    "larger blocks": {"block": 2},
    "smaller blocks": {"block": 0.5},
    "nothing held": {"held": 0},
    "more threads": {"threads": 2},
    "fewer threads": {"threads": 0.5},
}


class CpuPlan(Plan):
    """A thread walks a range of rows: however long a row, its values are at hand."""

    def _shares(self, reduction: Node, domain: frozenset[int], over: frozenset[int]) -> int:
        rows, size = self.loops.size(domain - over), self.loops.size(domain)
        if rows * WIDTH >= size or rows >= PARTS:
            return 1
        if reduction in self._fed_back and rows > 1:
            return 1
        return max(1, min(PARTS // rows, size // PART))

    def _write_parts(self, kernel: Kernel, original: Node, node: Node, rest: frozenset[int]) -> None:
        super()._write_parts(kernel, original, node, rest)
        self._parts.clear()  # squares are added up in a walk of their own

    def _ride(self) -> None:
        """Every thread would store what is the same for all."""


@dataclass(frozen=True)
class Schedule:
    """Sizes are in elements.

    Attributes:
        rows, inner: axes, the slowest first; of rows, those that are added up come last.
        lane: the axis along which vectors lie; None: there is no axis at all.
        block: of that axis, what a task walks; all of it where it is within rows.
        programs: parts of the rows that are added up (1 if none are).
        tasks: which threads share.
        threads: for how many there is enough to do.
        vectors: at a time, along a row.
        held: bytes that a thread has for values that a later walk needs.
    """

    rows: tuple[int, ...]
    inner: tuple[int, ...]
    lane: int | None
    block: int
    programs: int
    tasks: int
    threads: int
    vectors: int
    held: int
    whole: bool = True

    @property
    def within(self) -> frozenset[int]:
        """Axes within rows."""
        return frozenset(self.inner)

    @property
    def heading(self) -> str:
        """As text."""
        held = "" if self.held else ", nothing held"
        return f"{self.tasks} tasks, at most {self.threads} threads, {self.vectors} vectors at a time{held}"


def scheduled(loops: Loops, kernel: Kernel, preference: str = "") -> Schedule:
    """The schedule of a kernel. It sets the size of the axis of parts.

    Args:
        preference: one of `PREFERENCES`, which is followed as far as it is legal; "": what the model chooses.
    """
    own = _chosen(loops, kernel)
    return _around(loops, kernel, own, PREFERENCES[preference]) if preference else own


def _around(loops: Loops, kernel: Kernel, own: Schedule, factors: Mapping[str, float]) -> Schedule:
    """Another block, of whole packs of vectors, or all of an axis; the parts that are added up stay what they are."""
    size, block = loops.sizes[own.lane] if own.lane is not None else 1, own.block
    vectors = int(own.vectors * factors.get("vectors", 1))
    if kernel.shares > 1:  # which are of whole packs of the model's own
        vectors = min(vectors, own.vectors)
    if kernel.inner is None or own.lane in own.rows:
        step = vectors * MOST_LANES
        block = min(size, -(-max(1, int(own.block * factors.get("block", 1))) // step) * step)
    tasks = own.tasks // -(-size // own.block) * -(-size // block)
    return replace(
        own,
        block=block,
        tasks=tasks,
        threads=max(1, min(tasks, int(own.threads * factors.get("threads", 1)))),
        vectors=vectors,
        held=int(own.held * factors.get("held", 1)),
    )


def _chosen(loops: Loops, kernel: Kernel) -> Schedule:
    order, _ = layout(loops, kernel)
    lane = _lane(loops, kernel, order)
    inner = [a for a in order if kernel.inner is None or a in kernel.inner]
    kept = [a for a in order if a not in inner and a not in kernel.summed]
    rows = [*kept, *(a for a in order if a in kernel.summed)]
    for axes in (rows, inner):
        if lane in axes:
            axes.remove(lane)
            axes.append(lane)
    size = loops.sizes[lane] if lane is not None else 1
    outer, block, programs = loops.size(a for a in rows if a != lane), size, 1
    if kernel.inner is None:
        outer, block = loops.size(a for a in inner if a != lane), min(size, CHUNK)
    elif lane in rows:
        block = min(size, WIDTH)
    if kernel.summed:
        count = loops.size(kernel.summed)
        kept_rows = loops.size(kept)
        programs = max(1, min(count, PARTS, loops.size(kernel.domain) // (kept_rows * PART // 4)))
        if count // programs > 4 * PARTS:  # the fewer are added up one by one, the more precise
            programs = min(8 * PARTS, count // (4 * PARTS))
        assert kernel.partial_axis is not None
        loops.sizes[kernel.partial_axis] = programs
        outer = kept_rows * programs
    tasks = outer * -(-size // block) * kernel.shares
    threads = max(1, min(tasks, loops.size(kernel.domain) * _cost(kernel) // THREAD))
    return Schedule(tuple(rows), tuple(inner), lane, block, programs, tasks, threads, VECTORS, HELD)


def _cost(kernel: Kernel) -> int:
    """Additions for an element, about."""
    operations = [n for n in below(kernel.anchors) if n.kind == "operation" and n.axes == kernel.domain]
    return sum(COST.get(n.data, 1) for n in operations) + 4


def _lane(loops: Loops, kernel: Kernel, order: list[int]) -> int | None:
    """The axis along which the most bytes are next to each other."""
    within = [a for a in order if not kernel.summed or a in (kernel.inner or ())]
    if not within:
        return order[-1] if order and not kernel.summed else None
    forms = [(s.node.type.itemsize, s.axes) for s in kernel.stores]
    forms += [(n.type.itemsize, n.data[-2]) for n in below(kernel.anchors) if n.kind == "load"]
    near = dict.fromkeys(within, 0)
    for itemsize, axes in forms:
        for axis, stride in axes:
            if abs(stride) == 1 and axis in near:
                near[axis] += itemsize * loops.size(a for a, _ in axes)
    best = max(near.values())
    return max((a for a in within if near[a] == best), key=lambda a: (loops.sizes[a], order.index(a)))
