"""The best choice, exactly: a minimum cut in each block of a problem, blocks put together by dynamic programming.

The joint graphs of networks fall apart at values that all paths go through, such as the residual stream between two
layers: at those, `networkx.biconnected_components` cuts the reduced problem into a tree of small blocks. A value
between blocks is absent, saved or recomputed; for each of these a block's best choice is one minimum cut (networkx,
Boykov-Kolmogorov). Equal blocks, as the layers of a network are, are solved once, so that a deep network takes little
more time than a shallow one.

A block is this flow network, in which what is paid is the edges from the source's side to the sink's:

    source --recompute--> again(v) --save--> there(v) --infinite--> again(u) for all readers u
                                             there(v) --infinite--> sink     if v is needed

v is recomputed if `again(v)` is on the sink's side, saved if only `there(v)` is.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import networkx as nx
from networkx.algorithms.flow import boykov_kolmogorov

from aotkit.partitioners.rematerialization.problem import Problem, Reduced, reduce


class State(enum.IntEnum):
    """Of a value, in the backward pass."""

    ABSENT = 0
    SAVED = 1
    RECOMPUTED = 2


Costs = tuple[int, ...]  # one for each state
Cuts = dict[State, tuple[int, list[State]]]  # of a block, for each state of its parent
Known = dict[Any, Cuts]


@dataclass
class _Block:
    """Some values, and how they hang together with other blocks.

    Attributes:
        parent: the value that it shares with the block above it; its cost counts there. None: there is no such block.
        below: for each value that it shares with blocks below, those.
    """

    values: list[int]
    parent: int | None
    below: dict[int, list[int]]


def solve(problem: Problem, known: Known | None = None) -> set[int]:
    """The values to save such that all needed ones are saved or can be recomputed, at the least total cost.

    Args:
        known: what is found is kept here, for problems of equal blocks.

    Raises:
        Impossible: a needed value can be neither saved nor recomputed.
    """
    reduced = reduce(problem)
    states = _states(reduced, {} if known is None else known)
    return reduced.settled | {value for value, state in states.items() if state is State.SAVED}


def _states(reduced: Reduced, known: Known) -> dict[int, State]:
    blocks = _tree(reduced)
    costs: list[Costs] = [()] * len(blocks)
    solutions: list[Cuts] = [{}] * len(blocks)
    for i in reversed(range(len(blocks))):
        block, fixed, below = blocks[i], 0, dict[int, Costs]()
        for value, found in block.below.items():
            sums = [sum(costs[j][s] for j in found) for s in State]
            fixed += min(sums)
            below[value] = tuple(c - min(sums) for c in sums)
        key = _key(reduced, block, below)
        if key not in known:
            states = State if block.parent is not None else [State.ABSENT]
            known[key] = {state: _cut(reduced, block, below, state) for state in states}
        costs[i] = tuple(cost + fixed for cost, _ in known[key].values())
        solutions[i] = known[key]
    chosen: dict[int, State] = {}
    for block, solution in zip(blocks, solutions, strict=True):
        above = State.ABSENT if block.parent is None else chosen[block.parent]
        _, states_below = solution[above]
        chosen |= {v: s for v, s in zip(block.values, states_below, strict=True) if v != block.parent}
    return chosen


def _tree(reduced: Reduced) -> list[_Block]:
    """The blocks, each after the one above it."""
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(reduced.inputs)
    graph.add_edges_from((i, value) for value, inputs in reduced.inputs.items() for i in inputs)
    members = [sorted(b) for b in nx.biconnected_components(graph)] + [[v] for v in nx.isolates(graph)]
    around: dict[int, list[int]] = {value: [] for value in graph}
    for i, values in enumerate(members):
        for value in values:
            around[value].append(i)
    blocks: list[_Block] = []
    seen: set[int] = set()
    # The one at the top takes one cut instead of three.
    for root in sorted(range(len(members)), key=lambda i: -len(members[i])):
        queue: list[tuple[int, int | None, dict[int, list[int]]]] = [] if root in seen else [(root, None, {})]
        while queue:
            i, parent, siblings = queue.pop()
            seen.add(i)
            if parent is not None:
                siblings.setdefault(parent, []).append(len(blocks))
            blocks.append(block := _Block(members[i], parent, {}))
            queue += [(j, v, block.below) for v in block.values if v != parent for j in around[v] if j != i]
    return blocks


def _key(reduced: Reduced, block: _Block, below: Mapping[int, Costs]) -> Any:
    """The same for blocks that have the same solution."""
    place = {v: k for k, v in enumerate(block.values)}
    edges = [tuple(sorted(place[i] for i in reduced.inputs[v] if i in place)) for v in block.values]
    values = [
        None if v == block.parent else (reduced.save[v], reduced.recompute[v], v in reduced.needed, below.get(v))
        for v in block.values
    ]
    return reduced.infinity, tuple(edges), tuple(values)


def _cut(reduced: Reduced, block: _Block, below: Mapping[int, Costs], above: State) -> tuple[int, list[State]]:
    """The least cost of a block, without its parent's, and the states of its values, if the parent's is `above`."""
    flow: nx.DiGraph[Any] = nx.DiGraph()
    flow.add_nodes_from(["source", "sink"])
    values = set(block.values)
    infinity = reduced.infinity * 2 * (1 + len(block.values)) + sum(map(sum, below.values()))
    fixed = 0

    def add(start: Any, end: Any, cost: int) -> None:
        """Pay a cost if the start is on the source's side and the end is not."""
        before = flow[start][end]["capacity"] if flow.has_edge(start, end) else 0
        flow.add_edge(start, end, capacity=before + cost)

    for v in block.values:
        again, there = (v, "again"), (v, "there")
        for i in reduced.inputs[v] & values:
            add((i, "there"), again, infinity)
        add(there, again, infinity)  # what is recomputed is there
        if v == block.parent:
            for node, is_so in ((there, above is not State.ABSENT), (again, above is State.RECOMPUTED)):
                start, end = (node, "sink") if is_so else ("source", node)
                add(start, end, infinity)
            continue
        add("source", again, reduced.recompute[v])
        add(again, there, reduced.save[v])
        if v in reduced.needed:
            add(there, "sink", infinity)
        if v in below:
            absent, saved, recomputed = below[v]
            fixed += absent
            for node, more in ((there, saved - absent), (again, recomputed - saved)):
                if more >= 0:
                    add("source", node, more)
                else:
                    add(node, "sink", -more)
                    fixed += more
    cost, (near, _) = nx.minimum_cut(flow, "source", "sink", flow_func=boykov_kolmogorov)
    states = [
        State.RECOMPUTED if (v, "again") not in near else State.SAVED if (v, "there") not in near else State.ABSENT
        for v in block.values
    ]
    return min(cost + fixed, reduced.infinity), states
