"""What depends on what, and what is next to what."""

from collections.abc import Iterable, Sequence

from aotkit.backends.fuser.loops import Node, Result, Strides
from aotkit.backends.fuser.values import below


def contiguous(strides: Strides) -> int:
    """The axis along which neighbours are next to each other in memory; -1: all positions are values."""
    return min(strides, key=lambda term: abs(term[1]), default=(-1, 0))[0]


def reductions_of(nodes: Iterable[Node]) -> set[Node]:
    """The reductions that these are computed of without another one between."""
    return {n for n in direct(nodes) if n.kind == "reduction"}


def direct(nodes: Iterable[Node]) -> list[Node]:
    """These, and what they are computed of without a reduction between."""
    found: dict[Node, None] = {}
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node not in found:
            found[node] = None
            pending += () if node.kind == "reduction" else node.args
    return list(found)


def fed_back(reductions: Sequence[Node], results: Sequence[Result]) -> set[Node]:
    """The reductions whose result is computed with along an axis that they add up: the loop is walked again."""
    found = set()
    for reduction in reductions:
        over = reduction.data[1]
        depends: set[Node] = {reduction}
        for node in below(r.node for r in results):
            if any(x in depends for x in node.args):
                depends.add(node)
        if any(node.axes & over for node in depends):
            found.add(reduction)
    return found


def read_together(reductions: Sequence[Node], results: Sequence[Result]) -> dict[Node, Node]:
    """Loads of whole tensors that one reduction or result reads, directly or by way of others: the same one for each.

    What reads one of them and what reads another belong in one kernel, which has to read both.
    """
    found: dict[Node, Node] = {}
    for anchor in [*(n.args[0] for n in reductions), *(r.node for r in results)]:
        loads = [n for n in direct([anchor]) if n.kind == "load" and n.axes == anchor.axes]
        groups = {found.setdefault(n, n) for n in loads}
        if len(groups) > 1:
            first = min(groups, key=list(found).index)
            found.update({n: first for n, group in found.items() if group in groups})
    return found
