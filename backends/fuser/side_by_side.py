"""Parts of a tensor that are put together again, as halves are by a rotary embedding, are read once.

`where(test, f(a[i + 64]), g(a[i - 64]))`, whose loads are guarded by the test and its opposite, becomes one load
without a guard: of `a[i + where(test, 64, -64)]`. Gradients of halves are such a choice, too: each has zeros in place
of the other half, and both are added.
"""

from collections.abc import Sequence

import torch

from aotkit.backends.fuser.dependence import direct
from aotkit.backends.fuser.loops import Loops, Node, Result, rewritten


def read_once(loops: Loops, results: Sequence[Result]) -> tuple[list[Result], dict[Node, Node]]:
    """The results with fewer loads, and what their nodes have been before."""

    def rule(n: Node, args: list[Node]) -> Node:
        if n.does("where"):
            args[1:] = _joined(loops, *args)
        elif n.does("add"):
            args = _chosen(loops, *args)
        return loops.rebuilt(n, args)

    return rewritten(results, rule)


def _chosen(loops: Loops, a: Node, b: Node) -> list[Node]:
    """`where(test, x, y) + 0` in place of `where(test, x, 0) + where(test, 0, y)`: that makes a difference for -0."""
    for one, other in ((a, b), (b, a)):
        if all(n.does("where") for n in (one, other)) and one.args[0] is other.args[0]:
            test, yes, rest = one.args
            _, nothing, no = other.args
            if rest is nothing and rest.kind == "constant" and rest.data == 0:
                return [loops.operation("where", test, *_joined(loops, test, yes, no)), rest]
    return [a, b]


def _joined(loops: Loops, test: Node, yes: Node, no: Node) -> tuple[Node, Node]:
    for a in direct([yes]):
        for b in direct([no]):
            if _is_plain(a) and _is_plain(b) and _opposite(test, a, b):
                (buffer, _, strides, there), here = a.data, b.data[-1]
                offsets = (loops.constant(n, torch.int64) for n in (there, here))
                chosen = loops.operation("where", test, *offsets)
                both = loops.node("load", a.type, (chosen,), (buffer, (1,), strides, 0))
                yes, no = loops.replaced(yes, {a: both}, {}), loops.replaced(no, {b: both}, {})
                break
    return yes, no


def _is_plain(node: Node) -> bool:
    return node.kind == "load" and not node.data[1] and len(node.args) == 1


def _opposite(test: Node, a: Node, b: Node) -> bool:
    """Whether two loads differ by their offsets alone, and one may be read where a test holds, the other elsewhere."""
    (first,), (second,) = a.args, b.args
    same = (a.data[:3], a.type, a.axes) == (b.data[:3], b.type, b.axes)
    return same and first is test and (test.data, second.data) == ("lt", "ge") and test.args == second.args
