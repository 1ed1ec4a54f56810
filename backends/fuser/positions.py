"""Nodes where an axis has a position: one, or as many as there are along another axis."""

import torch

from aotkit.backends.fuser.loops import Loops, Node, Strides

COMPARISONS = ("lt", "ge", "eq")


def is_of_position(node: Node, axis: int) -> bool:
    """Whether a comparison is of the position along an axis with a number."""
    position, number = node.args
    return position.kind == "index" and position.data[0] == ((axis, 1),) and number.kind == "constant"


def moved(strides: Strides, axis: int, new: int | None) -> Strides:
    """Strides along another axis; None: at one place."""
    renamed = ((new if a == axis else a, stride) for a, stride in strides)
    return tuple((a, stride) for a, stride in renamed if a is not None)


class Part:
    """Nodes where the position along an axis is `start`, and the position along a new axis more if there is one.

    Attributes:
        before: what new nodes have been.
    """

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
        if node.data in COMPARISONS and is_of_position(node, self._axis):
            first, at = start + node.args[0].data[1], node.args[1].data
            last = first + self._size - 1
            holds = {
                "lt": (last < at, first >= at),
                "ge": (first >= at, last < at),
                "eq": (first == last == at, not first <= at <= last),
            }
            yes, no = holds[node.data]
            return loops.constant(yes, torch.bool) if yes or no else None
        if node.data == "logical_and":
            args = list(map(self, node.args))
            if any(_is(x, False) for x in args):
                return loops.constant(False, torch.bool)
            return next((other for x, other in zip(args, reversed(args), strict=True) if _is(x, True)), None)
        if node.data == "where" and (test := self(node.args[0])).kind == "constant":
            return self(node.args[1 if test.data else 2])
        return None

    def _there(self, node: Node) -> Node:
        args, data = list(map(self, node.args)), node.data
        if node.kind in ("load", "index"):
            *rest, strides, offset = data
            offset += self._start * dict(strides).get(self._axis, 0)
            data = *rest, moved(strides, self._axis, self._new), offset
        if node.kind == "load":
            args = [x for x in args if not _is(x, True)]
        new = self._loops.node(node.kind, node.type, args, data)
        self.before.setdefault(new, node)
        return new


def _is(node: Node, value: bool) -> bool:
    return node.kind == "constant" and node.type is torch.bool and node.data is value
