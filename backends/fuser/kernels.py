"""Which values share a kernel.

A kernel walks a domain: *rows*, one program for one or several of them, and the *inner* axes, over which a program has
whole rows at hand. A reduction over the inner axes is there at once, for everything else of the kernel. One over rows
is added up by each program, and finished by a later kernel: so the gradients of a normalisation's weight and bias are
column sums in the kernel that computes that of its input.

What a kernel stores, and the reductions, are its *anchors*; everything between is computed where it is needed. So a
pointwise value that two kernels read is computed twice, from what they load, and what a later kernel needs of an
earlier one is reductions alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from aotkit.backends.fuser.dependence import contiguous, fed_back, reductions_of
from aotkit.backends.fuser.loops import Loops, Node, Result, Strides
from aotkit.backends.fuser.values import below

MULTIPROCESSORS = 132  # of an H100; others have work enough for as many programs as well
PROGRAMS = 4 * MULTIPROCESSORS
FEWEST_ROWS = 64  # with fewer rows, each of which is long, a row is shared by several programs
SHORT_ROW, SHORT_COLUMN = 8192, 1024
ONE_PROGRAM = 16384  # elements that are not worth a second kernel
LONGEST_WHOLE_ROW = 16384  # elements that a program holds in registers


@dataclass(frozen=True)
class Store:
    """A value that a kernel writes to a buffer."""

    node: Node
    buffer: int
    axes: Strides


@dataclass(frozen=True)
class Partial(Store):
    """A reduction of which each program writes its part."""


@dataclass(eq=False)
class Kernel:
    """One loop nest.

    Attributes:
        domain: all axes that it walks.
        inner: those within a program; None while nothing asks for any.
        inline: reductions over them, which are there for the rest of the kernel.
        reductions: the same, as the kernel computes them: of loads where others compute a part.
        shares: how many programs share a row.
        partial_axis: the axis of the parts, in the buffers of `partials`.
        summed: the rows that a program adds up.
    """

    domain: frozenset[int]
    inner: frozenset[int] | None = None
    inline: set[Node] = field(default_factory=set)
    reductions: list[Node] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    partials: list[Partial] = field(default_factory=list)
    shares: int = 1
    partial_axis: int | None = None
    summed: frozenset[int] = frozenset()
    loads: set[Node] = field(default_factory=set)

    @property
    def rows(self) -> frozenset[int]:
        return self.domain - (self.inner or frozenset())


@dataclass
class Buffer:
    """A tensor that kernels write: a result, or a temporary one, whose size may depend on how many programs run."""

    type: torch.dtype
    axes: Strides
    result: Result | None = None


class Plan:
    """The kernels of a definition, in the order in which they run.

    Attributes:
        buffers: tensors that are written; their numbers go on from those of the inputs.
    """

    def __init__(self, loops: Loops, results: Sequence[Result], inputs: int) -> None:
        self.loops, self.kernels = loops, list[Kernel]()
        self.inputs, self.buffers = inputs, list[Buffer]()
        self._at: dict[Node, Kernel] = {}  # reductions that are inline in a kernel
        self._finished: dict[Node, Node] = {}  # reductions that parts are written of -> what finishes them
        self._writers: dict[int, Kernel] = {}  # of temporary buffers
        self._loaded: dict[Node, Node] = {}  # reductions of another kernel -> their load
        anchors = [n for n in below(r.node for r in results) if n.kind == "reduction"]
        self._fed_back = fed_back(anchors, results)
        self._place(anchors, results)

    def _place(self, anchors: list[Node], results: Sequence[Result]) -> None:
        """Each after what it reads; first what needs whole rows, then results, then what only ends in a result."""
        waiting: list[Node | Result] = [*anchors, *results]
        placed: set[Node] = set()
        while waiting:
            ready = [a for a in waiting if all(r in placed for r in reductions_of(_operands(a)))]
            chosen = min(ready, key=self._urgency)
            waiting.remove(chosen)
            if isinstance(chosen, Node):
                placed.add(chosen)
                self._place_reduction(chosen)
            else:
                self._place_result(chosen)

    def _urgency(self, anchor: "Node | Result") -> int:
        return 1 if isinstance(anchor, Result) else 0 if anchor in self._fed_back else 2

    def _place_result(self, result: Result) -> None:
        buffer = self._buffer(result.node.type, result.axes)
        self.buffers[-1].result = result
        self._place_store(result.node, buffer, result.axes)

    def _place_store(self, node: Node, buffer: int, axes: Strides) -> None:
        node = self._now(node)
        domain = frozenset(a for a, _ in axes)
        for kernel in reversed(self.kernels):
            fits = self._can_read(kernel, node) and self._can_store(kernel, domain, node)
            if fits and not self._crosses(kernel, node, axes):
                break
        else:
            kernel = self._kernel(domain)
        self._add(kernel, node)
        kernel.stores.append(Store(self._in(kernel, node), buffer, axes))

    def _crosses(self, kernel: Kernel, node: Node, axes: Strides) -> bool:
        """Whether neighbours in memory are those of a row in one tensor, and those of a column in another."""
        loads = [n.data[-2] for n in below([self._in(kernel, node)]) if n.kind == "load" and n.axes == kernel.domain]
        nearest = [contiguous(terms) in (kernel.inner or ()) for terms in (*loads, axes) if terms]
        return kernel.inner is not None and any(nearest) and not all(nearest) and len(axes) == len(kernel.domain)

    def _can_store(self, kernel: Kernel, domain: frozenset[int], node: Node) -> bool:
        if domain == kernel.domain:
            return self._shares_loads(kernel, node) or bool(reductions_of([node]) & kernel.inline)
        # One value for each row.
        return kernel.inner is not None and domain == kernel.rows and bool(reductions_of([node]) & kernel.inline)

    def _place_reduction(self, original: Node) -> None:
        node = self._now(original)
        if node.kind != "reduction" or node in self._at:  # a value that is there
            return
        domain, over = node.args[0].axes, node.data[1]
        able = [k for k in reversed(self.kernels) if self._can_read(k, node) and self._related(k, node)]
        for kernel in able:
            if self._adds_up(kernel, node):
                return self._add_up(kernel, original, node)
        for kernel in able:
            if self._takes(kernel, original, domain, over):
                return self._inline(kernel, original, node)
        kernel = self._kernel(domain)
        kernel.inner, kernel.shares = over, self._shares(original, domain, over)
        self._inline(kernel, original, node)

    def _related(self, kernel: Kernel, node: Node) -> bool:
        """Whether they have anything to share; for small tensors, and for what programs wrote, one kernel is enough."""
        small = self.loops.size(kernel.domain) <= SHORT_ROW * FEWEST_ROWS or node.args[0].axes == kernel.rows
        parts = any(n.kind == "load" and n.data[0] in self._writers for n in node.args)
        return small or parts or self._shares_loads(kernel, node) or bool(reductions_of(node.args) & kernel.inline)

    def _takes(self, kernel: Kernel, original: Node, domain: frozenset[int], over: frozenset[int]) -> bool:
        """Whether a kernel reduces over these axes, or may."""
        if kernel.domain != domain or kernel.inner not in (None, over):
            return False
        shares = self._shares(original, domain, over)
        if kernel.inner is None:
            if original in self._fed_back and shares > 1:
                return False
            kernel.inner, kernel.shares = over, shares
        return kernel.shares == 1 or original not in self._fed_back

    def _shares(self, reduction: Node, domain: frozenset[int], over: frozenset[int]) -> int:
        """How many programs share a row: enough to fill a GPU, each with at least 4096 elements."""
        rows, length = self.loops.size(domain - over), self.loops.size(over)
        together = self._neighbours(reduction, domain - over)
        programs = max(1, rows // together)
        if length <= SHORT_COLUMN or self.loops.size(domain) <= ONE_PROGRAM:
            return 1
        if reduction in self._fed_back and (programs >= FEWEST_ROWS or (together == 1 and length <= SHORT_ROW)):
            return 1
        return max(1, min(PROGRAMS // programs, length * together // 4096))

    def _neighbours(self, reduction: Node, rows: frozenset[int]) -> int:
        """How many rows are next to each other in memory, up to 64: those are one program's."""
        loads = [n for n in below([reduction]) if n.kind == "load" and n.data[-2]]
        widest = max(loads, key=lambda n: self.loops.size(n.axes), default=None)
        if widest is None:
            return 1
        axis = contiguous(widest.data[-2])
        return min(64, self.loops.sizes[axis]) if axis in rows else 1

    def _adds_up(self, kernel: Kernel, node: Node) -> bool:
        """Whether a reduction over rows can be one of this kernel."""
        name, over = node.data
        arg = node.args[0]
        if not kernel.inner or not kernel.inline or kernel.shares > 1 or name != "sum":
            return False
        if self.loops.size(kernel.inner) > self._longest_summed() or arg.axes not in (kernel.domain, kernel.rows):
            return False
        if over & kernel.inner and not kernel.inner <= over:
            return False
        wide = [n.data[-2] for n in kernel.loads if n.axes == kernel.domain]
        if any(contiguous(strides) not in kernel.inner for strides in wide):  # a program reads several rows at a time
            return False
        rows = over - kernel.inner
        return bool(rows) and rows <= kernel.rows and kernel.summed <= rows

    def _longest_summed(self) -> int:
        """Elements of a row, at most, that a program adds up one row after the other."""
        return LONGEST_WHOLE_ROW

    def _inline(self, kernel: Kernel, original: Node, node: Node) -> None:
        self._add(kernel, node)
        if kernel.shares > 1:
            self._write_parts(kernel, original, node, frozenset())
            return
        kernel.inline.add(node)
        self._at[node] = kernel
        kernel.reductions.append(self._in(kernel, node))
        if node is not original:
            self._finished[original] = node

    def _add_up(self, kernel: Kernel, original: Node, node: Node) -> None:
        """A reduction over rows; over inner axes as well, those come first."""
        name, over = node.data
        assert kernel.inner is not None
        if over & kernel.inner:
            first = self.loops.node("reduction", node.type, node.args, (name, over & kernel.inner))
            if first not in self._at:
                self._inline(kernel, first, first)
            node = self.loops.node("reduction", node.type, (first,), (name, over - kernel.inner))
        self._add(kernel, node)
        kernel.summed = kernel.summed or node.data[1]
        rest = node.data[1] - kernel.summed
        node = self.loops.node("reduction", node.type, node.args, (name, kernel.summed))
        self._write_parts(kernel, original, node, rest)

    def _write_parts(self, kernel: Kernel, original: Node, node: Node, rest: frozenset[int]) -> None:
        """Each program writes what it has added up; what finishes it adds up the parts, and the rest of the rows."""
        if kernel.partial_axis is None:
            kernel.partial_axis = self.loops.axis(kernel.shares if kernel.shares > 1 else PROGRAMS)
        axes, step = self._dense(node.axes)
        axes = ((kernel.partial_axis, step), *axes)
        buffer = self._buffer(node.type, axes, kernel)
        kernel.partials.append(Partial(self._in(kernel, node), buffer, axes))
        load = self.loops.node("load", node.type, (), (buffer, (), axes, 0))
        last = self.loops.node("reduction", node.type, (load,), (node.data[0], rest | {kernel.partial_axis}))
        if original in self._fed_back:
            self._fed_back.add(last)
        self._place_reduction(last)
        self._finished[original] = self._finished.get(last, last)

    def _dense(self, axes: Iterable[int]) -> tuple[Strides, int]:
        """Strides of a dense tensor with these axes, and its number of elements."""
        strides, step = [], 1
        for axis in sorted(axes, reverse=True):
            strides.append((axis, step))
            step *= self.loops.sizes[axis]
        return tuple(reversed(strides)), step

    def _now(self, node: Node) -> Node:
        """The node, with what finishes reductions in their places."""
        return self.loops.replaced(node, self._finished, {})

    def _in(self, kernel: Kernel, node: Node) -> Node:
        """The node as the kernel computes it: reductions of other kernels are loads."""
        others: dict[Node, Node] = {}
        pending, seen = [node], set[Node]()
        while pending:
            n = pending.pop()
            if self._at.get(n, kernel) is not kernel:
                others[n] = self._load(n)
            elif n not in seen:
                seen.add(n)
                pending += n.args
        return self.loops.replaced(node, others, {})

    def _load(self, reduction: Node) -> Node:
        """The load of a reduction, which its kernel stores then."""
        if reduction not in self._loaded:
            kernel = self._at[reduction]
            axes, _ = self._dense(reduction.axes)
            buffer = self._buffer(reduction.type, axes, kernel)
            kernel.stores.append(Store(self._in(kernel, reduction), buffer, axes))
            self._loaded[reduction] = self.loops.node("load", reduction.type, (), (buffer, (), axes, 0))
        return self._loaded[reduction]

    def _can_read(self, kernel: Kernel, node: Node) -> bool:
        """Whether what a node reads is computed in this kernel, or written by an earlier one."""
        place = self.kernels.index(kernel)
        pending, seen = list(node.args) if node.kind == "reduction" else [node], set[Node]()
        while pending:
            n = pending.pop()
            if n in seen:
                continue
            seen.add(n)
            writer = self._at.get(n) or (self._writers.get(n.data[0]) if n.kind == "load" else None)
            if writer is not None and (n.kind == "load" or writer is not kernel):
                if self.kernels.index(writer) >= place:
                    return False
                continue
            pending += n.args
        return True

    def _shares_loads(self, kernel: Kernel, node: Node) -> bool:
        return any(n in kernel.loads for n in below([node]) if n.kind == "load" and n.axes == kernel.domain)

    def _add(self, kernel: Kernel, node: Node) -> None:
        kernel.loads.update(n for n in below([self._in(kernel, node)]) if n.kind == "load")

    def _kernel(self, domain: frozenset[int]) -> Kernel:
        self.kernels.append(Kernel(domain))
        return self.kernels[-1]

    def _buffer(self, dtype: torch.dtype, axes: Strides, writer: Kernel | None = None) -> int:
        self.buffers.append(Buffer(dtype, axes))
        number = self.inputs + len(self.buffers) - 1
        if writer is not None:
            self._writers[number] = writer
        return number


def _operands(anchor: "Node | Result") -> Sequence[Node]:
    if isinstance(anchor, Result):
        return [anchor.node]
    return anchor.args if anchor.kind == "reduction" else [anchor]
