"""The order of the backward pass: what frees at least as much memory as it takes runs as soon as it can.

The gradients of a weight and of an activation are computed from the same gradient, and one of them may be the last to
read something large: that one should come first. What frees nothing keeps its turn, and so does what is recomputed,
just before its first reader. Two such orders are tried: of operators as they run one by one, and of kernels as a
compiler fuses them. One is taken if the backward pass never holds more with it, counted either way, and less at least
one way. Nothing moves across an operator that draws random numbers, communicates, writes into its inputs, or may have
another effect.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch.fx import GraphModule, Node

from aotkit.aot.effects import changes_inputs, keeps_order
from aotkit.aot.partition import Sides, storages
from aotkit.inspection.nodes import bytes_name, output_nodes
from aotkit.partitioners.rematerialization.fusion import depths_of, kernels_of, readers_of
from aotkit.partitioners.rematerialization.lifetimes import bytes_alive, numbered, uses_of
from aotkit.partitioners.rematerialization.operators import is_cheap, is_free
from aotkit.partitioners.rematerialization.scheduling import Task, frees_first

_log = logging.getLogger("aotkit")
Group = list[Node]


def lower_peak(backward: GraphModule, sides: Sides) -> None:
    """Reorder a backward graph, in place, if that lowers the most that it holds at once.

    Args:
        sides: of the joint graph that it is a part of.
    """
    work = _work(backward, sides)
    before = best = work.peaks(work.nodes)
    chosen = None
    for groups in (work.operators(), work.kernels()):
        order = work.in_sequence([groups[i] for i in frees_first(work.tasks(groups))])
        peaks = work.peaks(order)
        if peaks < best and all(new <= old for new, old in zip(peaks, before, strict=True)):
            chosen, best = order, peaks
    if chosen is None:
        return
    output = backward.graph.output_node()
    for node in chosen:
        output.prepend(node)
    backward.recompile()
    _log.info(
        "The backward pass is reordered. It holds at most %s at once instead of %s as a compiler fuses it, and %s "
        "instead of %s operator by operator.",
        bytes_name(best[0]), bytes_name(before[0]), bytes_name(best[1]), bytes_name(before[1]),
    )  # fmt: skip


@dataclass
class _Work:
    """A backward graph.

    Attributes:
        given: its inputs.
        nodes: all others but the output, in order.
        free: those that move no data.
        barriers: those that are kernels of their own.
        fences: those that nothing moves across.
        gradients: those that are not recomputed.
        memories: node -> memory that is not alive all the time -> bytes.
        returned: memory that is alive to the end.
        held: bytes that are alive all the time.
    """

    given: list[Node]
    nodes: list[Node]
    free: set[Node]
    barriers: set[Node]
    fences: set[Node]
    gradients: set[Node]
    memories: dict[Node, dict[Any, int]]
    returned: set[Any]
    held: int

    def operators(self) -> list[Group]:
        """Each by itself."""
        return [[node] for node in self.nodes if node not in self.free]

    def kernels(self) -> list[Group]:
        """As a compiler makes them between two fences, in the order in which they end."""
        fused = [node for node in self.nodes if node not in self.free and node not in self.barriers]
        kernels = kernels_of(fused, readers_of(self.nodes, self.free), depths_of(self.nodes, self.barriers))
        groups: dict[tuple[Node, int], Group] = {}
        part = 0
        for node in self.nodes:
            if node not in self.free:
                part += node in self.fences
                groups.setdefault((kernels.get(node, node), part), []).append(node)
                part += node in self.fences
        turns = {node: i for i, node in enumerate(self.nodes)}
        return sorted(groups.values(), key=lambda group: turns[group[-1]])

    def tasks(self, groups: Sequence[Group]) -> list[Task]:
        """What each group waits for, reads and leaves."""
        number = {node: i for i, group in enumerate(groups) for node in group}
        makers: dict[Any, int | None] = {key: None for node in self.given for key in self.memories[node]}
        for node, i in number.items():
            for key in self.memories[node]:
                makers.setdefault(key, i)
        sources: dict[Node, set[int]] = {}
        for node in (*self.given, *self.nodes):
            before = (sources[i] for i in node.all_input_nodes)
            sources[node] = {number[node]} if node in number else set().union(*before)
        reads: list[dict[Any, int]] = []
        after: list[set[int]] = []
        fence = -1
        for i, group in enumerate(groups):
            inputs = {j for node in group for j in node.all_input_nodes}
            found = {key: size for j in inputs for key, size in self.memories[j].items()}
            reads.append({key: size for key, size in found.items() if makers[key] != i})
            after.append(set().union(*(sources[j] for j in inputs)) - {i})
            if group[0] in self.fences:
                after[i].update(range(max(fence, 0), i))
                fence = i
            elif fence >= 0:
                after[i].add(fence)
        left = {key: size for read in reads for key, size in read.items()}
        left |= {key: size for node in number for key, size in self.memories[node].items() if key in self.returned}
        leaves = [0] * len(groups)
        for key, size in left.items():
            if (maker := makers[key]) is not None:
                leaves[maker] += size
        freed = [{key: size for key, size in read.items() if key not in self.returned} for read in reads]
        is_early = [not self.gradients.isdisjoint(group) for group in groups]
        return [Task(*task) for task in zip(after, freed, leaves, is_early, strict=True)]

    def in_sequence(self, groups: Sequence[Group]) -> list[Node]:
        """The order of all nodes: views and sizes right before their first reader, parts of a tuple right after it."""
        turns = {node: i for i, node in enumerate(node for group in groups for node in group)}
        for node in reversed(self.nodes):
            if node in self.free:
                turns[node] = min((turns[user] for user in node.users if user in turns), default=len(self.nodes))
        keys: dict[Node, tuple[int, bool, int, int]] = {}
        for i, node in enumerate(self.nodes):
            if node.target is getitem and (source := node.all_input_nodes[0]) in keys:
                keys[node] = (*keys[source][:3], i)
            else:
                keys[node] = (turns[node], node not in self.free, i, -1)
        return sorted(self.nodes, key=keys.__getitem__)

    def peaks(self, order: Sequence[Node]) -> tuple[int, int]:
        """The most bytes that are alive at once: as a compiler fuses, and if operators run one by one."""
        operators = {node for node in order if node not in self.free}
        return self._peak(order, self.barriers), self._peak(order, operators)

    def _peak(self, order: Sequence[Node], barriers: Collection[Node]) -> int:
        nodes = [*self.given, *order]
        at, steps = numbered(nodes, 0, barriers)
        uses = uses_of(nodes, at, self.memories, barriers, self.free)
        spans = [use.span(steps - 1 if key in self.returned else 0) for key, use in uses.items()]
        return self.held + max(bytes_alive(spans, steps))


def _work(backward: GraphModule, sides: Sides) -> _Work:
    """What there is to do in a backward graph."""
    given = backward.graph.find_nodes(op="placeholder")
    nodes = [node for node in backward.graph.nodes if node.op not in ("placeholder", "output")]
    fences = {node for node in nodes if node.op != "get_attr" and _stays(node)}
    free = {node for node in nodes if node not in fences and is_free(node)}
    barriers = {node for node in nodes if node not in free and not is_cheap(node)}
    held = {key: size for node in (*sides.inputs, *sides.outputs) for key, size in storages(node).items()}
    constants = {key for node in nodes if node.op == "get_attr" for key in storages(node)}
    memories = {
        node: {key: size for key, size in storages(node).items() if key not in held and key not in constants}
        for node in (*given, *nodes)
    }
    returned = {key for node in output_nodes(backward) if node is not None for key in memories[node]}
    late = {node.name for node in sides.backward}
    gradients = {node for node in nodes if node.name in late}
    return _Work(given, nodes, free, barriers, fences, gradients, memories, returned, sum(held.values()))


def _stays(node: Node) -> bool:
    """Whether nothing may move across a node, as it does more than to compute tensors from tensors."""
    reads_data = torch.Tag.data_dependent_output in getattr(node.target, "tags", ())  # for a number
    return keeps_order(node) or changes_inputs(node) or reads_data
