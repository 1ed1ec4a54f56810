"""Reductions of which one needs the other, in one walk over a row that a program does not hold.

The largest value and the sum of exponentials around it are updated together: Milakov and Gimelshein, "Online
normalizer calculation for softmax", 2018; the mean and the squares of what is left: Welford, "Note on a method for
calculating corrected sums of squares and products", Technometrics, 1962.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aotkit.backends.fuser.loops import Node


@dataclass(frozen=True)
class Pair:
    """Two reductions of the values `of`: `second` uses `center`, which is computed of the first, as other pairs may be.

    Attributes:
        kind: "exponentials" or "squares".
    """

    kind: str
    of: Node
    center: Node
    first: Node
    second: Node


def paired(reductions: Iterable[Node]) -> dict[Node, Pair]:
    """The pairs among these reductions, by their second ones. The pairs of one first reduction are of one kind."""
    found: dict[Node, Pair] = {}
    kinds: dict[Node, str] = {}
    for second in reductions:
        pair = _exponentials(second) or squares(second)
        if pair is None or pair.first.data[1] != second.data[1]:
            continue
        if kinds.setdefault(pair.first, pair.kind) == pair.kind:
            found[second] = pair
    return found


def _exponentials(second: Node) -> Pair | None:
    """sum(exp(x - m)), where m is max(x), or that where it is finite."""
    if (difference := _operand(second, "exp")) is None or not difference.does("sub"):
        return None
    of, center = difference.args
    first = center
    if center.does("where"):
        first = center.args[2]
    if first.kind == "reduction" and first.data[0] == "max" and first.args[0] is of:
        return Pair("exponentials", of, center, first, second)
    return None


def squares(second: Node) -> Pair | None:
    """sum((x - m) ** 2), where m is sum(x) / n."""
    rest = _operand(second, "mul", lambda node: node.args[0] is node.args[1])
    if rest is None or not rest.does("sub") or not rest.args[1].does("truediv"):
        return None
    of, center = rest.args
    first = center.args[0]
    if first.kind == "reduction" and first.data[0] == "sum" and first.args[0] is of:
        return Pair("squares", of, center, first, second)
    return None


def _operand(reduction: Node, name: str, test: Callable[[Node], bool] = lambda node: True) -> Node | None:
    """What the operation of this name that a sum adds up is computed of."""
    arg = reduction.args[0]
    return arg.args[0] if reduction.data[0] == "sum" and arg.does(name) and test(arg) else None
