"""Which operations of a graph go to one compiler together.

A region is connected, and no value leaves it that comes back into it; nor do two regions wait for each other. It is
as large as that allows. Where it could begin or end with views, these stay outside: they move no data.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.passes import (
    changes_inputs,
    in_chunks,
    is_pointwise,
    is_symbol,
    is_tensor,
    is_view,
    keeps_order,
    packet_name,
    producer,
    tensors_of,
)
from aotkit.stages.regions.quotient_graph import Quotient, in_order

# Of ATen, for one operation; others have 1. Padding fills all, then copies; of what is in chunks there are many.
ATEN_KERNELS: dict[Any, int] = {torch.ops.aten.constant_pad_nd.default: 2, in_chunks: 100}
# What a compiler may return as it is, if it is an input or another output.
_COPIES = {"clone", "lift_fresh_copy"}
_CASTS = {"_to_copy", "convert_element_type"}
AT_AN_EDGE = "a view at the edge of a region"
A_COPY = "a copy, in whose place a compiler may return what it copies"

Region = list[Node]  # operations, in the order of the graph


class Operations:
    """The operations of a graph, and what each has to come after. Nodes that pick one of several results go with it.

    Attributes:
        nodes: the operations, without constants, in the order of the graph.
        constants: those that make a tensor of no other: filled, counted, a view of such a one, or pointwise arithmetic
            on such. They cost little, so each region computes its own.
        views: those that move no data.
        picks: operation -> the nodes that pick one of its results.
        reads: operation -> those whose results it reads, itself or through constants.
        after: operation -> those that it comes after: what it reads, and what has an effect before its own.
        position: node -> its place in the graph.
    """

    def __init__(self, gm: GraphModule) -> None:
        self.nodes: list[Node] = []
        self.constants: set[Node] = set()
        self.views: set[Node] = set()
        self.picks: dict[Node, list[Node]] = defaultdict(list)
        self.reads: dict[Node, set[Node]] = {}
        self.after: dict[Node, set[Node]] = {}
        self.position = {node: i for i, node in enumerate(gm.graph.nodes)}
        self._writes = any(changes_inputs(node) for node in gm.graph.nodes)
        last_effect = barrier = None
        since_barrier: list[Node] = []
        for node in gm.graph.nodes:
            if node.op in ("placeholder", "get_attr", "output"):
                continue
            if (own := producer(node)) is not node:
                self.picks[own].append(node)
                continue
            self.reads[node] = self._read(node)
            if self._is_constant(node):
                self.constants.add(node)
                continue
            self.nodes.append(node)
            self.after[node] = self.reads[node] | ({barrier} if barrier else set())
            if changes_inputs(node):
                self.after[node].update(since_barrier)
                last_effect, barrier, since_barrier = node, node, []
                continue
            since_barrier.append(node)
            if keeps_order(node):
                self.after[node] |= {last_effect} if last_effect else set()
                last_effect = node
            elif is_view(node):
                self.views.add(node)

    def _read(self, node: Node) -> set[Node]:
        """The operations whose results it reads; a constant stands for what gives it its size."""
        sources = {producer(n) for n in node.all_input_nodes}
        direct = {s for s in sources if s in self.after}
        return direct.union(*(self.reads[s] for s in sources if s in self.constants))

    def _is_constant(self, node: Node) -> bool:
        if self._writes or not is_tensor(node) or keeps_order(node):  # a copy would not see what is written into it
            return False
        tensors = [n for n in node.all_input_nodes if not is_symbol(n)]
        return not tensors or (all(n in self.constants for n in tensors) and (is_view(node) or is_pointwise(node)))

    def nodes_of(self, region: Iterable[Node]) -> list[Node]:
        """The nodes of operations, with those that pick one of several results, in the order of the graph."""
        return sorted(n for op in region for n in (op, *self.picks[op]))

    def memory_of(self, node: Node) -> Node:
        """What a node views, if it does."""
        while (own := producer(node)) in self.views:
            node = next(n for n in own.all_input_nodes if not is_symbol(n))
        return node

    def leaving(self, region: Collection[Node]) -> tuple[list[Node], list[Node]]:
        """The results of a region that are read outside of it, and the views of them that have to be taken there."""
        nodes = self.nodes_of(region)
        inside, read, results, views = set(nodes), set[Node](), list[Node](), list[Node]()
        for node in reversed(nodes):
            if node not in read and all(u in inside for u in node.users):
                continue
            if producer(node) in self.views:
                views.append(node)
                read.update(n for n in node.all_input_nodes if n in inside)
            else:
                results.append(node)
        return results[::-1], views[::-1]


def find_regions(
    ops: Operations, taken: Collection[Node], others: Sequence[Region], horizontal: bool
) -> tuple[list[Region], dict[Node, str]]:
    """The largest regions of operations that a compiler takes, in topological order of their first ones.

    Args:
        taken: the operations that it takes.
        others: regions of other compilers, which stay as they are.
        horizontal: merge regions that read the same tensor, too, though neither reads the other's results.

    Returns:
        The regions, and operations that it takes and yet cannot have -> why.
    """
    taken, refused = set(taken), dict[Node, str]()
    while True:
        regions = _grown(ops, set(taken), others, horizontal)
        copies = [op for region in regions for op in _bare_copies(ops, region)]
        if not copies:
            break
        refused |= dict.fromkeys(copies, A_COPY)
        taken.difference_update(copies)
    regions = [_without_last_views(ops, region) for region in regions]
    kept = {op for region in regions for op in region}
    return regions, refused | dict.fromkeys((op for op in taken if op not in kept), AT_AN_EDGE)


def _grown(ops: Operations, taken: set[Node], others: Sequence[Region], horizontal: bool) -> list[Region]:
    """Go through the graph, and merge each operation with what it reads. A view that could not be leaves `taken`."""
    heads = {op: region[0] for region in others for op in region}
    after: dict[Node, set[Node]] = {}
    for op in ops.nodes:
        head = heads.get(op, op)
        after.setdefault(head, set()).update(heads.get(a, a) for a in ops.after[op])
        after[head].discard(head)
    last = {region[0]: region[-1] for region in others}
    quotient = Quotient[Node]()
    order = in_order(after, lambda head: ops.position[last.get(head, head)])
    for op in order:
        quotient.add(op, after[op])
        if op in taken:
            joined = quotient.attach(op, ops.reads[op] & taken)
            if op in ops.views and not joined:
                taken.discard(op)
    if horizontal:
        _merge_siblings(ops, quotient, taken)
    regions: dict[Node, Region] = {}
    for op in ops.nodes:
        if op in taken:
            regions.setdefault(quotient.find(op), []).append(op)
    return list(regions.values())


def _merge_siblings(ops: Operations, quotient: Quotient[Node], taken: Collection[Node]) -> None:
    """Merge regions that read the same tensor: it is read once then, and there are fewer kernels.

    Regions that have nothing in common stay apart: merged, they would only make values live longer. So do those that
    share one element, such as the seed of all random numbers.
    """
    readers: dict[Node, list[Node]] = defaultdict(list)
    for op in ops.nodes:
        if op in taken:
            for source in {ops.memory_of(n) for n in op.all_input_nodes}:
                if producer(source) not in ops.constants and _has_elements(source):
                    readers[source].append(op)
    for source in sorted(readers):
        found = sorted(readers[source], key=lambda op: (quotient.rank(op), ops.position[op]))
        for a, b in pairwise(found):
            quotient.merge_independent(a, b)


def _has_elements(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and not (isinstance(value.numel(), int) and value.numel() <= 1)


def _bare_copies(ops: Operations, region: Region) -> list[Node]:
    """Copies that a region returns of what it is given, or returns as well."""
    results, inside = set(ops.leaving(region)[0]), set(region)

    def is_seen(node: Node) -> bool:
        return producer(node) not in inside or node in results

    return [op for op in region if op in results and is_copy(op) and is_seen(ops.memory_of(op.all_input_nodes[0]))]


def is_copy(op: Node) -> bool:
    """Whether it returns what it is given, in memory of its own."""
    if not op.all_input_nodes or packet_name(op) not in (*_COPIES, *_CASTS):
        return False
    given, made = op.all_input_nodes[0].meta["val"], op.meta["val"]
    return packet_name(op) in _COPIES or (given.dtype, given.device) == (made.dtype, made.device)


def _without_last_views(ops: Operations, region: Region) -> Region:
    kept = set(region)
    for op in reversed(region):
        users = {u for n in (op, *ops.picks[op]) for u in n.users} - set(ops.picks[op])
        if op in ops.views and not any(producer(u) in kept for u in users):
            kept.discard(op)
    return [op for op in region if op in kept]


def aten_kernels(op: Node) -> int:
    """How many of ATen's kernels an operation is worth: to broadcast in three dimensions or more takes as long as two.

    64 x 4 x 128 x 128 times a number for each of the 64 takes 17 us on an H200, and 10 by a kernel of its own.
    """
    value = op.meta.get("val")
    if not isinstance(value, Tensor) or value.dim() < 3 or not is_pointwise(op):
        return ATEN_KERNELS.get(op.target, 1)
    sizes = [x.shape for node in op.all_input_nodes for x in tensors_of(node) if x.numel() != 1]
    return 2 if any(size != value.shape for size in sizes) else 1
