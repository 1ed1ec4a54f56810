"""What of a graph is computed of some rows at a time, instead of a tensor that is too large.

A product such as that of a head of a language model makes rows as long as the vocabulary of short ones. What reads it
shortens them again: a loss, and the gradients of what it was computed of. All of that is one part of the graph.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from torch.fx import Graph, Node

from aotkit.passes import is_random
from aotkit.stages.chunks.rows import Known, Rows, Step, is_fixed, sizes_of
from aotkit.stages.chunks.rules import PRODUCTS, VIEWS, step_of

LARGER = 2  # times what it is computed of: a product that is worth it
WIDE = 0.5  # of the elements of the largest product: what is as large


@dataclass
class Part:
    """Nodes that are computed of some rows at a time.

    Attributes:
        groups: of rows: how many there are.
        steps: what each node is in a chunk, in the order of the graph.
        results: those that others read.
    """

    groups: int
    steps: dict[Node, Step]
    results: list[Node] = field(default_factory=list)

    @cached_property
    def operands(self) -> dict[Node, Rows | None]:
        """What is read of others, and its rows."""
        return {x: rows for x, rows in self._read if x not in self.constants}

    @cached_property
    def constants(self) -> list[Node]:
        """What is computed of nothing, such as the numbers of words, and is the same for all rows: in order."""
        constant: set[Node] = set()
        for node in next(iter(self.steps)).graph.nodes:
            if node.op == "call_function" and constant.issuperset(node.all_input_nodes) and not is_random(node):
                constant.add(node)
        by_rows = {x for x, rows in self._read if rows is not None}
        stack = [x for x, _ in self._read if x in constant and x not in by_rows]
        found: set[Node] = set()
        while stack:
            if (node := stack.pop()) not in found:
                found.add(node)
                stack += node.all_input_nodes
        return sorted(found)

    def read_both_ways(self) -> list[Node]:
        """What some read row by row, and others all of it."""
        rows: dict[Node, set[Rows | None]] = defaultdict(set)
        for x, of_x in self._read:
            rows[x].add(of_x)
        return [x for x, found in rows.items() if len(found) > 1]

    @cached_property
    def _read(self) -> list[tuple[Node, Rows | None]]:
        steps = self.steps.values()
        return [(x, rows) for step in steps for x, rows in step.operands.items() if x not in self.steps]


def bytes_of(node: Node) -> int:
    """Of a node's tensor."""
    value = node.meta["val"]
    return prod(sizes_of(node)) * int(value.dtype.itemsize)


def widest_products(graph: Graph) -> list[Node]:
    """Products that are larger than what they are computed of, the largest first, with those of as many rows."""
    found = []
    for node in graph.nodes:
        if node.target in PRODUCTS and is_fixed(node):
            matrices: Any = node.args[PRODUCTS[node.target] :][:2]
            if is_fixed(matrices[0]) and prod(sizes_of(node)) >= LARGER * prod(sizes_of(matrices[0])):
                found.append(node)
    found.sort(key=lambda n: -prod(sizes_of(n)))
    return found


def descendants(nodes: Iterable[Node]) -> set[Node]:
    """Nodes, and all that is computed of them."""
    found: set[Node] = set()
    stack = [*nodes]
    while stack:
        if (node := stack.pop()) not in found and node.op != "output":
            found.add(node)
            stack += node.users
    return found


def groupings(product: Node) -> list[int]:
    """How many groups the rows of a product may be: as many as rows; or as sequences, if it is viewed as such."""
    rows = sizes_of(product)[0]
    views = [sizes_of(user) for user in product.users if user.target in VIEWS and is_fixed(user)]
    return [rows, *(sizes[0] for sizes in views if 1 < sizes[0] < rows and rows % sizes[0] == 0)][:2]


def part_of(graph: Graph, products: Sequence[Node], groups: int) -> Part | str:
    """What is computed of some products, as far as it has as many elements; or why that is not done in chunks."""
    most = prod(sizes_of(products[0]))
    after = descendants(products)
    is_wide = {n: is_fixed(n) and prod(sizes_of(n)) >= WIDE * most for n in graph.nodes if n.op == "call_function"}
    steps: dict[Node, Step] = {}
    known: dict[Node, Rows] = {}

    def take(node: Node, step: Step) -> None:
        steps[node] = step
        if step.rows is not None:
            known[node] = step.rows
        for x, of_x in step.operands.items():
            if of_x is not None and x not in known and any(is_wide.get(i, False) for i in (x, *x.all_input_nodes)):
                take_other(x, of_x)

    def take_other(node: Node, wanted: Rows) -> None:
        """What is as large, and not computed of the products: zeros, a mask, the logits of a teacher."""
        step = None if is_random(node) else step_of(node, Known(known, groups, wanted))
        if step is not None:
            take(node, step)

    for node in graph.nodes:
        if node in products and node not in steps:
            step = step_of(node, Known(known, groups, Rows(0)))
        elif node in after and node not in steps and not is_random(node):
            step = step_of(node, Known(known, groups))
        else:
            continue
        if step is not None:
            take(node, step)
    inside = _inside(graph, steps, [n for n in steps if is_wide[n] and steps[n].rows is not None], after)
    for node in inside:
        if node not in steps:
            return f"{node} reads what is as large, and is not computed row by row"
    part = Part(groups, {n: steps[n] for n in graph.nodes if n in inside})
    for node in part.read_both_ways():
        return f"of {node} rows are read, and all"
    for node, rows in part.operands.items():
        if rows is not None and is_wide.get(node, False):
            return f"{node} is as large, and is not computed row by row"
    return _complete(part, is_wide, after)


def _inside(graph: Graph, steps: Mapping[Node, Step], wide: Sequence[Node], after: set[Node]) -> set[Node]:
    """What is as large, what reads it, and what either is computed of on the way."""
    found = {user for n in wide if n in after for user in n.users if user.op != "output"}.union(wide)
    for node in reversed(graph.nodes):
        if node in found and node in steps:
            found.update(x for x in steps[node].operands if x in steps)
    return found


def _complete(part: Part, is_wide: Mapping[Node, bool], after: set[Node]) -> Part | str:
    for node, step in part.steps.items():
        others = [user for user in node.users if user not in part.steps]
        if not others:
            continue
        if is_wide[node] and step.how == "rows":
            if node in after:
                return f"all of {node} is read at once"
            continue  # it is computed once more
        part.results.append(node)
    if any(steps.rows is None and any(u in part.steps for u in node.users) for node, steps in part.steps.items()):
        return "rows depend on what is computed of all of them"
    return part
