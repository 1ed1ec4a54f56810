"""Graphs whose nodes are merged, and which stay acyclic."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Quotient(Generic[T]):
    """A directed acyclic graph, added to node by node in topological order; merged nodes are one node of it.

    Each node has a rank above those of its inputs, so that a search for a path need not go beyond its ends.
    """

    def __init__(self) -> None:
        self._parent: dict[T, T] = {}
        self._before: dict[T, set[T]] = {}
        self._after: dict[T, set[T]] = {}
        self._rank: dict[T, int] = {}

    def find(self, node: T) -> T:
        """The node that stands for all that `node` is merged with."""
        parent = self._parent
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    def rank(self, node: T) -> int:
        """Where it is in a topological order; not comparable after a further merge."""
        return self._rank[self.find(node)]

    def add(self, node: T, inputs: Iterable[T]) -> None:
        """Add a node after those that it depends on."""
        before = {self.find(i) for i in inputs}
        self._parent[node] = node
        self._before[node], self._after[node] = before, set()
        self._rank[node] = self._above(before)
        for i in before:
            self._after[i].add(node)

    def attach(self, node: T, others: Iterable[T]) -> bool:
        """Merge the node added last with those of its inputs to which it has no path around; tell if there are any."""
        inputs = self._inputs(node)
        wanted = {self.find(o) for o in others}
        joined = {w for w in wanted if not self._is_around(w, node)}
        if joined:
            # Nothing depends on it yet, so it may move to its inputs; else all that depends on those would move.
            self._rank[node] = self._above(inputs - joined)
            self._merge([node, *joined])
        return bool(joined)

    def merge_independent(self, a: T, b: T) -> bool:
        """Merge two nodes if neither depends on the other; tell whether."""
        a, b = sorted((self.find(a), self.find(b)), key=self._rank.__getitem__)
        if a == b or a in self._inputs(b) or self._is_around(a, b):
            return False
        self._merge([a, b])
        return True

    def _above(self, nodes: Iterable[T]) -> int:
        return 1 + max((self._rank[n] for n in nodes), default=-1)

    def _inputs(self, node: T) -> set[T]:
        self._before[node] = {self.find(i) for i in self._before[node]} - {node}
        return self._before[node]

    def _users(self, node: T) -> set[T]:
        self._after[node] = {self.find(i) for i in self._after[node]} - {node}
        return self._after[node]

    def _is_around(self, a: T, b: T) -> bool:
        """Whether there is a path from `a` to `b` through other nodes.

        It is looked for from both ends in turns: where there is none, one end often has few nodes beyond it. Backward,
        nodes of low rank go first: in a graph of layers nearly all depends on what has a lower one yet.
        """
        rank, (low, high) = self._rank, (self._rank[a], self._rank[b])
        after, before = self._users(a) - {b}, self._inputs(b) - {a}
        if not after.isdisjoint(before):
            return True
        forward = [n for n in after if rank[n] < high]
        backward = [(rank[n], i, n) for i, n in enumerate(before) if rank[n] > low]
        heapify(backward)
        while forward and backward:
            for n in self._users(forward.pop()) - after:
                if n in before:
                    return True
                if rank[n] < high:
                    after.add(n)
                    forward.append(n)
            for n in self._inputs(heappop(backward)[-1]) - before:
                if n in after:
                    return True
                if rank[n] > low:
                    before.add(n)
                    heappush(backward, (rank[n], len(before), n))
        return False

    def _merge(self, nodes: Sequence[T]) -> None:
        """Merge nodes of which none has a path to another but their edges."""
        root = max(nodes, key=lambda n: len(self._before[n]) + len(self._after[n]))
        rank = max(self._rank[n] for n in nodes)
        lower = [n for n in nodes if self._rank[n] < rank]
        for node in nodes:
            self._parent[node] = root
        for node in nodes:
            if node != root:
                self._before[root] |= self._before.pop(node)
                self._after[root] |= self._after[node]
        self._rank[root] = rank
        for node in lower:
            self._raise({self.find(n) for n in self._after[node]} - {root}, rank)
        for node in nodes:
            if node != root:
                del self._after[node], self._rank[node]

    def _raise(self, nodes: Iterable[T], rank: int) -> None:
        """Give nodes, and what depends on them, ranks above `rank`."""
        stack = [(n, rank) for n in nodes]
        while stack:
            node, rank = stack.pop()
            if self._rank[node] <= rank:
                self._rank[node] = rank + 1
                stack += [(n, rank + 1) for n in self._users(node)]


def in_order(after: Mapping[T, Collection[T]], position: Callable[[T], int]) -> list[T]:
    """Sort nodes so that each comes after those that it depends on, and else by position.

    Args:
        after: node -> what it comes after.
        position: different for each node.
    """
    sorter = TopologicalSorter(after)
    sorter.prepare()
    ready: list[tuple[int, T]] = []
    order: list[T] = []
    while sorter.is_active():
        for node in sorter.get_ready():
            heappush(ready, (position(node), node))
        _, first = heappop(ready)
        order.append(first)
        sorter.done(first)
    return order
