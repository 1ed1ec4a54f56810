"""Results that are put together of others, as by `cat` or `stack`, are stored piece by piece.

`where(i < 256, f(a[i]), g(b[i - 256]))`, where f and g need the sum of a row each, is two results in one tensor: in one
kernel, each position would be computed both ways.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from aotkit.backends.fuser.loops import Loops, Node, Result, Strides
from aotkit.backends.fuser.values import below

MOST = 4  # pieces of a result
COMPARISONS = ("lt", "ge", "eq")


def in_pieces(loops: Loops, results: Sequence[Result]) -> tuple[list[Result], dict[Node, Node]]:
    """The results, some of them in pieces, and what new nodes have been before."""
    cutting = _Cutting(loops, results)
    return [piece for result in results for piece in cutting.pieces(result)], cutting.before


class _Cutting:
    def __init__(self, loops: Loops, results: Sequence[Result]) -> None:
        self._loops, self.before = loops, dict[Node, Node]()
        self._nodes = set(below(r.node for r in results))
        self._reduced = _reduced(r.node for r in results)
        self._axes: dict[tuple[int, int], int] = {}  # equal parts of an axis are one axis, so that they can share loads

    def pieces(self, result: Result) -> list[Result]:
        """Those of a result; the result itself where that is better stored as it is."""
        nodes, has_sums = list(below([result.node])), bool(_reduced([result.node]))
        for axis, stride in result.axes:
            size = self._loops.sizes[axis]
            cuts = {at for n in nodes for at in _cuts(n, axis) if 0 < at < size}
            is_stack = len(cuts) == size - 1
            if not 1 <= len(cuts) < MOST or axis in self._reduced or not (has_sums or is_stack):
                continue
            starts, ends = [0, *sorted(cuts)], [*sorted(cuts), size]
            known = [self._known(result, axis, *part) for part in zip(starts, ends, strict=True)]
            parts = zip(starts, ends, known, strict=True)
            found = [self._piece(result, axis, stride, *part) for part in parts]
            loads = [{n for n in below([piece.node]) if n.kind == "load"} for piece in found]
            is_shared = any((one & other) - self._nodes for one, other in itertools.combinations(loads, 2))
            if all(loads) and (is_stack or is_shared or any(a is not None for a in known)):
                return found
        return [result]

    def _piece(self, result: Result, axis: int, stride: int, start: int, end: int, new: int | None) -> Result:
        if (size := end - start) > 1 and new is None:
            new = self._axes[axis, size] = self._axes.get((axis, size)) or self._loops.axis(size)
        part = _Part(self._loops, axis, new, start, size)
        node = part(result.node)
        self.before |= {new: old for new, old in part.before.items() if new not in self._nodes}
        offset = result.offset + start * stride
        return replace(result, node=node, axes=_moved(result.axes, axis, new), offset=offset, is_piece=True)

    def _known(self, result: Result, axis: int, start: int, end: int) -> int | None:
        """The axis along which what the piece reads is read already, for a sum or another result, if there is one."""
        taken, size = {a for a, _ in result.axes}, end - start
        for known in [a for a, n in self._loops.sizes.items() if n == size > 1 and a not in taken]:
            sums = (n for n in below([result.node]) if n.kind == "reduction" and known in n.data[1])
            if any(axis in n.args[0].axes for n in sums):  # it has another meaning there
                continue
            node = _Part(self._loops, axis, known, start, size)(result.node)
            if any(n.kind == "load" and n in self._nodes for n in _along(node, known)):
                return known
        return None


def _reduced(nodes: Iterable[Node]) -> set[int]:
    """Axes over which anything is reduced."""
    return {axis for n in below(nodes) if n.kind == "reduction" for axis in n.data[1]}


def _along(node: Node, axis: int) -> Iterator[Node]:
    """What a node is computed of that varies along an axis, and not within a sum over it."""
    pending, seen = [node], set[Node]()
    while pending:
        n = pending.pop()
        if n not in seen and axis in n.axes:
            seen.add(n)
            pending += n.args
            yield n


def _cuts(node: Node, axis: int) -> Iterator[int]:
    """Where a comparison of the position along an axis changes."""
    if node.data in COMPARISONS and _is_of_position(node, axis):
        position, number = node.args
        at = int(number.data) - position.data[1]
        yield from (at, at + 1) if node.data == "eq" else (at,)


def _is_of_position(node: Node, axis: int) -> bool:
    position, number = node.args
    return position.kind == "index" and position.data[0] == ((axis, 1),) and number.kind == "constant"


def _moved(strides: Strides, axis: int, new: int | None) -> Strides:
    renamed = ((new if a == axis else a, stride) for a, stride in strides)
    return tuple((a, stride) for a, stride in renamed if a is not None)


class _Part:
    """Nodes where the position along an axis is `start`, and the position along a new axis more if there is one."""

    def __init__(self, loops: Loops, axis: int, new: int | None, start: int, size: int) -> None:
        self._loops, self._axis, self._new, self._start, self._size = loops, axis, new, start, size
        self.before, self._done = dict[Node, Node](), dict[Node, Node]()

    def __call__(self, node: Node) -> Node:
        if self._axis not in node.axes:
            return node
        if node not in self._done:
            self._done[node] = self._decided(node) or self._there(node)
        return self._done[node]

    def _decided(self, node: Node) -> Node | None:
        """What a test of the position leaves of a node, if it leaves anything out."""
        loops, start = self._loops, self._start
        if node.kind == "load":
            guards = [self(x) for x in node.args[len(node.data[1]) :]]
            return loops.constant(0, node.type) if any(_is(x, False) for x in guards) else None
        if node.kind != "operation":
            return None
        if node.data in COMPARISONS and _is_of_position(node, self._axis):
            first, at = start + node.args[0].data[1], node.args[1].data
            last = first + self._size - 1
            holds = {"lt": (last < at, first >= at), "ge": (first >= at, last < at), "eq": (first == last == at, True)}
            yes, no = holds[node.data]
            return loops.constant(yes, torch.bool) if yes or no else None
        if node.data == "logical_and":
            one, other = map(self, node.args)
            return (
                other if _is(one, True) or _is(other, False) else one if _is(other, True) or _is(one, False) else None
            )
        if node.data == "where" and (test := self(node.args[0])).kind == "constant":
            return self(node.args[1 if test.data else 2])
        return None

    def _there(self, node: Node) -> Node:
        args, data = list(map(self, node.args)), node.data
        if node.kind in ("load", "index"):
            *rest, strides, offset = data
            offset += self._start * dict(strides).get(self._axis, 0)
            data = *rest, _moved(strides, self._axis, self._new), offset
        if node.kind == "load":
            args = [x for x in args if not _is(x, True)]
        new = self._loops.node(node.kind, node.type, args, data)
        self.before.setdefault(new, node)
        return new


def _is(node: Node, value: bool) -> bool:
    return node.kind == "constant" and node.type is torch.bool and node.data is value
