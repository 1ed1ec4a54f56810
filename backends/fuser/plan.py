"""Which values share a kernel.

A kernel walks a domain: *rows*, one program for one or several of them, and the *inner* axes, over which a program has
whole rows at hand. A reduction over the inner axes is there at once, for everything else of the kernel. One over rows
is added up by each program, and finished by a later kernel: so the gradients of a normalisation's weight and bias are
column sums in the kernel that computes that of its input.

What a kernel stores, and the reductions, are its *anchors*; everything between is computed where it is needed. So a
pointwise value that two kernels read is computed twice, from what they load, and what a later kernel needs of an
earlier one is reductions alone.
"""

from collections.abc import Sequence

import torch

from aotkit.backends.fuser import limits
from aotkit.backends.fuser.dependence import contiguous, direct, fed_back, read_together, reductions_of
from aotkit.backends.fuser.kernels import Buffer, Kernel, Partial, Store
from aotkit.backends.fuser.loops import Loops, Node, Result, Strides
from aotkit.backends.fuser.pairs import Pair, squares
from aotkit.backends.fuser.schedule import layout, power_of_two
from aotkit.backends.fuser.shares import around_one_center, elements_of_part, own_squares, shares, unit
from aotkit.backends.fuser.values import below


class Plan:
    """The kernels of a definition, in the order in which they run.

    Attributes:
        buffers: tensors that are written; their numbers go on from those of the inputs.
        tensors: numbers of the buffers that are returned, by theirs among these.
        originals: of reductions that kernels compute: those that they are, or finish.
    """

    def __init__(self, loops: Loops, results: Sequence[Result], inputs: int) -> None:
        self.loops, self.kernels = loops, list[Kernel]()
        self.inputs, self.buffers, self.tensors = inputs, list[Buffer](), dict[int, int]()
        self.originals: dict[Node, Node] = {}
        self._at: dict[Node, Kernel] = {}  # reductions that are inline in a kernel
        self._finished: dict[Node, Node] = {}  # reductions that parts are written of -> what finishes them
        self._writers: dict[int, Kernel] = {}  # of temporary buffers
        # Reductions of shared rows -> their kernel, what they are in it, and the load of what programs find.
        self._parts: dict[Node, tuple[Kernel, Node, Node]] = {}
        self._loaded: dict[Node, Node] = {}  # what another kernel has of its rows -> its load
        anchors = [n for n in below(r.node for r in results) if n.kind == "reduction"]
        self._reductions = anchors
        self._fed_back = fed_back(anchors, results)
        self._together = read_together(anchors, results)
        self._place(anchors, results)
        self._ride()

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

    def _urgency(self, anchor: "Node | Result") -> tuple[int, int]:
        """Sums over few axes come before those over more, which they are a part of."""
        if isinstance(anchor, Result):
            return 1, 0
        return 0 if anchor in self._fed_back else 2, len(anchor.data[1])

    def _place_result(self, result: Result) -> None:
        if (buffer := self.tensors.get(result.number)) is None:
            buffer = self.tensors[result.number] = self._buffer(result.node.type, result.axes)
            self.buffers[-1].result = result
        node, axes = self._now(result.node), result.axes
        domain = frozenset(a for a, _ in axes)
        for kernel in reversed(self.kernels):
            fits = self._can_read(kernel, node) and self._can_store(kernel, domain, node)
            if fits and not self._crosses(kernel, node, axes):
                break
        else:
            kernel = self._kernel(domain)
        self._add(kernel, node)
        kernel.stores.append(Store(self._in(kernel, node), buffer, axes, result.offset, result.is_piece))

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
        if (pair := squares(original)) and pair.first in self._parts:
            return self._share_squares(original, pair)
        domain, over = node.args[0].axes, node.data[1]
        able = [k for k in reversed(self.kernels) if self._can_read(k, node) and self._related(k, node)]
        for kernel in able:
            if self._adds_up(kernel, node):
                return self._add_up(kernel, original, node)
        for kernel in able:
            if self._takes(kernel, original, domain, over):
                return self._inline(kernel, original, node)
            if kernel.domain == domain and kernel.inner and kernel.inner < over and original not in self._fed_back:
                return self._reduce_in_two(original, node, kernel.inner)
        kernel = self._kernel(domain)
        self._reduce_over(kernel, original, over, self._shares(original, domain, over))
        self._inline(kernel, original, node)

    def _reduce_in_two(self, original: Node, node: Node, first: frozenset[int]) -> None:
        """Over some axes, over which a kernel reduces anyway, and what is left over the others."""
        name, over = node.data
        part = self.loops.node("reduction", node.type, node.args, (name, first))
        self._place_reduction(part)
        whole = self.loops.node("reduction", node.type, (part,), (name, over - first))
        self._finish(original, whole)

    def _related(self, kernel: Kernel, node: Node) -> bool:
        """Whether they have anything to share; for small tensors, and for what programs wrote, one kernel is enough."""
        few = self.loops.size(kernel.domain) <= limits.SHORT_ROW * limits.FEWEST_ROWS
        small = few or node.args[0].axes == kernel.rows
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
            self._reduce_over(kernel, original, over, shares)
        return kernel.shares == 1 or original not in self._fed_back or shares > 1

    def _shares(self, reduction: Node, domain: frozenset[int], over: frozenset[int]) -> int:
        return shares(self.loops, reduction, domain, over, reduction in self._fed_back)

    def _reduce_over(self, kernel: Kernel, reduction: Node, over: frozenset[int], shares: int) -> None:
        kernel.reduce_over(over, self.loops.size(over), shares, unit(self.loops, reduction, over))

    def _adds_up(self, kernel: Kernel, node: Node) -> bool:
        """Whether a reduction over rows can be one of this kernel."""
        name, over = node.data
        arg = node.args[0]
        if not kernel.inner or not kernel.inline or kernel.shares > 1 or name != "sum":
            return False
        if self.loops.size(kernel.inner) > limits.LONGEST_WHOLE_ROW or arg.axes not in (kernel.domain, kernel.rows):
            return False
        if over & kernel.inner and not kernel.inner <= over:
            return False
        wide = [n.data[-2] for n in kernel.loads if n.axes == kernel.domain]
        if any(contiguous(strides) not in kernel.inner for strides in wide):  # a program reads several rows at a time
            return False
        if arg.axes & kernel.inner - over and not self._can_hold(kernel, len(wide), over):
            return False
        rows = over - kernel.inner
        return bool(rows) and rows <= kernel.rows and kernel.summed <= rows

    def _can_hold(self, kernel: Kernel, loads: int, over: frozenset[int]) -> bool:
        """Whether a program has registers for the rows that it reads and for all sums over them, or will have none."""
        assert kernel.inner is not None
        sums = [n for n in self._reductions if n.data == ("sum", over) and n.args[0].axes == kernel.domain]
        return (loads + len(sums)) * power_of_two(self.loops.size(kernel.inner)) <= limits.HELD

    def _inline(self, kernel: Kernel, original: Node, node: Node) -> None:
        self._add(kernel, node)
        if kernel.shares > 1:
            self._write_parts(kernel, original, node, frozenset())
            return
        kernel.inline.add(node)
        self._at[node] = kernel
        kernel.reductions.append(self._in(kernel, node))
        if kernel.reductions[-1] is not original:
            self.originals[kernel.reductions[-1]] = original
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
            kernel.partial_axis = self.loops.axis(kernel.shares if kernel.shares > 1 else limits.PROGRAMS)
        axes = self.loops.dense((kernel.partial_axis, *self._in_order(kernel, node.axes)))
        buffer = self._buffer(node.type, axes, kernel)
        kernel.partials.append(Partial(self._in(kernel, node), buffer, axes, of=original))
        load = self.loops.node("load", node.type, (), (buffer, (), axes, 0))
        if kernel.shares > 1:
            self._parts[original] = kernel, kernel.partials[-1].node, load
        last = self.loops.node("reduction", node.type, (load,), (node.data[0], rest | {kernel.partial_axis}))
        self._finish(original, last)

    def _share_squares(self, original: Node, pair: Pair) -> None:
        """The squares around the mean, from what each program finds around a mean of its own, in the walk for sums."""
        kernel, first, sums = self._parts[pair.first]
        count = elements_of_part(self.loops, kernel, first.type)
        own, axes = own_squares(self.loops, first, count), sums.data[2]
        buffer = self._buffer(own.type, axes, kernel)
        kernel.partials.append(Partial(own, buffer, axes, of=original))
        parts = self.loops.node("load", own.type, (), (buffer, (), axes, 0))
        around = around_one_center(self.loops, parts, sums, count, self._now(pair.center))
        last = self.loops.node("reduction", own.type, (around,), ("sum", frozenset({axes[0][0]})))
        self._finish(original, last)

    def _finish(self, original: Node, last: Node) -> None:
        """The last step of a reduction."""
        self.originals[last] = original
        if original in self._fed_back:
            self._fed_back.add(last)
        self._place_reduction(last)
        self._finished[original] = self._finished.get(last, last)

    def _now(self, node: Node) -> Node:
        """The node, with what finishes reductions in their places."""
        return self.loops.replaced(node, self._finished, {})

    def _in(self, kernel: Kernel, node: Node) -> Node:
        """The node as the kernel computes it: what other kernels have of their rows are loads."""
        others: dict[Node, Node] = {}
        pending, seen = [node], set[Node]()
        while pending:
            n = pending.pop()
            if n in seen:
                continue
            seen.add(n)
            if (other := self._at.get(n) or self._known_in(n, kernel)) not in (None, kernel):
                others[n] = self._load(n, other)
            else:
                pending += n.args
        return self.loops.replaced(node, others, {})

    def _known_in(self, node: Node, kernel: Kernel) -> Kernel | None:
        """The kernel that has all reductions of what is one value for each of its rows, and is wanted for more.

        So it is computed once for a row, not for each element of what reads it.
        """
        if node.kind != "operation" or not node.axes < kernel.domain:
            return None
        leaves = [n for n in direct([node]) if n.kind == "reduction" or not n.args]
        kernels = {self._at.get(n) for n in leaves if n.kind != "constant"}
        found = kernels.pop() if len(kernels) == 1 else None
        return found if found is not None and found.rows == node.axes else None

    def _load(self, node: Node, kernel: Kernel) -> Node:
        """The load of what another kernel has of its rows, and stores then."""
        if node not in self._loaded:
            axes = self.loops.dense(self._in_order(kernel, node.axes))
            buffer = self._buffer(node.type, axes, kernel)
            kernel.stores.append(Store(self._in(kernel, node), buffer, axes))
            self._loaded[node] = self.loops.node("load", node.type, (), (buffer, (), axes, 0))
        return self._loaded[node]

    def _in_order(self, kernel: Kernel, axes: frozenset[int]) -> list[int]:
        """Axes of a temporary tensor as they are in memory where the kernel reads: neighbours stay neighbours."""
        return [a for a in layout(self.loops, kernel)[0] if a in axes]

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
        group = self._together
        loads = {group.get(n, n) for n in kernel.loads}
        return any(group.get(n, n) in loads for n in below([node]) if n.kind == "load" and n.axes == kernel.domain)

    def _ride(self) -> None:
        """Results that another kernel computes on its way are stored by that."""
        for small in [k for k in self.kernels if k.inner is None]:
            stored = {x.node for x in small.stores}
            wider = [k for k in self.kernels if small.domain < k.domain and not k.summed and k.shares == 1]
            if (kernel := next((k for k in wider if stored <= set(below(k.anchors))), None)) is not None:
                kernel.stores += small.stores
                self.kernels.remove(small)

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
