"""Reductions of a few values that lie apart, as the groups of heads that share keys are: unrolled.

Then nothing is reduced: a kernel that has other positions of the sum to compute as well, as a rotary embedding's
gradient has, needs no kernel before it.
"""

from collections.abc import Sequence

from aotkit.backends.fuser import limits
from aotkit.backends.fuser.loops import Loops, Node, Result, rewritten
from aotkit.backends.fuser.positions import Part
from aotkit.backends.fuser.values import below

TWO = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}


def unrolled(loops: Loops, results: Sequence[Result]) -> tuple[list[Result], dict[Node, Node]]:
    """The results without such reductions, and what their nodes have been before."""
    axes = _short(loops, results)
    if not axes:
        return list(results), {}

    def rule(n: Node, args: list[Node]) -> Node:
        if n.kind == "reduction" and n.data[1] <= axes:
            return _terms_together(loops, n, args[0])
        return loops.rebuilt(n, args)

    return rewritten(results, rule)


def _short(loops: Loops, results: Sequence[Result]) -> frozenset[int]:
    """Axes of a few positions, which lie apart, along which nothing varies but what is reduced over them alone."""
    axes = {axis for axis, size in loops.sizes.items() if 1 < size <= limits.UNROLLED}
    for result in results:
        axes -= {axis for axis, _ in result.axes} | result.node.axes
    for n in below(r.node for r in results):
        if n.kind == "load":
            axes -= {axis for axis, stride in n.data[2] if abs(stride) == 1}
        if n.kind == "reduction" and len(n.data[1]) > 1:
            axes -= n.data[1]
    return frozenset(axes)


def _terms_together(loops: Loops, reduction: Node, arg: Node) -> Node:
    name, (axis,) = reduction.data
    total, *rest = (Part(loops, axis, None, at, 1)(arg) for at in range(loops.sizes[axis]))
    for term in rest:
        total = loops.node("operation", reduction.type, (total, term), TWO[name])
    return total
