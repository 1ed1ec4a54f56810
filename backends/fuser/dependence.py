"""What depends on what, and what is next to what."""

from collections.abc import Iterable, Sequence

from aotkit.backends.fuser.loops import Node, Result, Strides
from aotkit.backends.fuser.values import below


def contiguous(strides: Strides) -> int:
    """The axis along which neighbours are next to each other in memory."""
    return min(strides, key=lambda term: abs(term[1]))[0]


def reductions_of(nodes: Iterable[Node]) -> set[Node]:
    """The reductions that these are computed of without another one between."""
    found: set[Node] = set()
    seen: set[Node] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.kind == "reduction":
            found.add(node)
        else:
            pending += node.args
    return found


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
