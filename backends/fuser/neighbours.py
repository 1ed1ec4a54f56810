"""Which neighbours along an axis are neighbours in memory, where positions are chosen: as when halves change places.

Triton finds out about sums, products and remainders by itself, but not about choices.
"""

from aotkit.backends.fuser.loops import Loops, Node

WIDEST = 16  # elements that are read at a time
MOVING = {"lt": 0, "ge": 0, "le": 1, "gt": 1}  # comparisons with a number, which change there or one further


def read_at_a_time(loops: Loops, load: Node, inner: tuple[int, ...]) -> int:
    """Elements next to each other, a power of two, of which the first is at a multiple of that, but for other terms."""
    _, steps, strides, _ = load.data
    if not steps or not inner or dict(strides).get(inner[-1]) != 1:
        return 1
    width = WIDEST if len(inner) == 1 else _factor(loops.sizes[inner[-1]])
    for position, step in zip(load.args, steps, strict=False):
        same, factor = _groups(position, inner[-1])
        width = min(width, same, factor * _factor(step))
    return width


def _groups(node: Node, axis: int) -> tuple[int, int]:
    """How many positions next to each other have the same value, and what that is a multiple of; powers of two."""
    if node.kind == "constant":
        return WIDEST, _factor(node.data)
    if axis not in node.axes:
        return WIDEST, 1
    if node.kind != "operation":
        return 1, 1
    if node.data in MOVING and node.args[0].kind == "index" and node.args[1].kind == "constant":
        (position, number), further = node.args, MOVING[node.data]
        strides, offset = position.data
        return (_factor(number.data + further - offset) if strides == ((axis, 1),) else 1), 1
    groups = [_groups(x, axis) for x in node.args]
    same, factors = min(g for g, _ in groups), [f for _, f in groups]
    if node.data == "where":
        return same, min(factors[1:])
    return same, factors[0] if node.data == "cast" and not node.type.is_floating_point else 1


def _factor(number: float) -> int:
    """The greatest power of two that divides a number."""
    n = int(number)
    return min(WIDEST, n & -n) if n else WIDEST
