"""Results that are put together of others, as by `cat` or `stack`, are stored piece by piece.

`where(i < 256, f(a[i]), g(b[i - 256]))`, where f and g need the sum of a row each, is two results in one tensor: in one
kernel, each position would be computed both ways. So is `cat((f(a), g(a)))`, as the gradient of what was cut in two:
in one kernel, each `a` would be read twice.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from aotkit.backends.fuser import limits
from aotkit.backends.fuser.loops import Loops, Node, Result
from aotkit.backends.fuser.positions import COMPARISONS, Part, is_of_position, moved
from aotkit.backends.fuser.values import below

MOST = 4  # pieces of a result


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
            if not 1 <= len(cuts) < MOST or axis in self._reduced:
                continue
            is_plain = not (has_sums or is_stack)
            starts, ends = [0, *sorted(cuts)], [*sorted(cuts), size]
            least = min(end - start for start, end in zip(starts, ends, strict=True))
            if is_plain and least * stride < limits.LONG_PIECE:
                continue
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
        part = Part(self._loops, axis, new, start, size)
        node = part(result.node)
        self.before |= {new: old for new, old in part.before.items() if new not in self._nodes}
        offset = result.offset + start * stride
        return replace(result, node=node, axes=moved(result.axes, axis, new), offset=offset, is_piece=True)

    def _known(self, result: Result, axis: int, start: int, end: int) -> int | None:
        """The axis along which what the piece reads is read already, for a sum or another result, if there is one."""
        taken, size = {a for a, _ in result.axes}, end - start
        for known in [a for a, n in self._loops.sizes.items() if n == size > 1 and a not in taken]:
            sums = (n for n in below([result.node]) if n.kind == "reduction" and known in n.data[1])
            if any(axis in n.args[0].axes for n in sums):  # it has another meaning there
                continue
            node = Part(self._loops, axis, known, start, size)(result.node)
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
    if node.data in COMPARISONS and is_of_position(node, axis):
        position, number = node.args
        at = int(number.data) - position.data[1]
        yield from (at, at + 1) if node.data == "eq" else (at,)
