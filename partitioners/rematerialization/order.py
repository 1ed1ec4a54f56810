"""The order of the backward pass: what frees at least as much memory as it takes runs as soon as it can.

The gradients of a weight and of an activation are computed from the same gradient, and one of them may be the last to
read something large: that one should come first. What frees nothing keeps its turn, and so does what is recomputed,
just before its first reader. What a compiler would fuse moves together. Such an order is taken if the backward pass
holds less with it as a compiler fuses it, or operator by operator, and more in neither case. Nothing moves across an
operator that draws random numbers, communicates, writes into its inputs, or may have another effect.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch.fx import GraphModule, Node

from aotkit.aot.effects import changes_inputs, keeps_order
from aotkit.aot.graph_modules import renew_code
from aotkit.aot.partition import Sides, storages
from aotkit.inspection import bytes_alive, output_nodes
from aotkit.partitioners.rematerialization.fusion import fused_in, readers_of
from aotkit.partitioners.rematerialization.lifetimes import numbered, reads_of, uses_of
from aotkit.partitioners.rematerialization.operators import is_cheap, is_free
from aotkit.partitioners.rematerialization.scheduling import Task, frees_first
from aotkit.text import bytes_name

_log = logging.getLogger("aotkit")
Kernel = list[Node]


def lower_peak(backward: GraphModule, sides: Sides) -> None:
    """Reorder a backward graph, in place, if that lowers the most that it holds at once.

    Args:
        sides: of the joint graph that it is a part of.
    """
    work = _work(backward, sides)
    kernels = work.kernels()
    order = [node for i in frees_first(work.tasks(kernels)) for node in kernels[i]]
    before, after = work.peaks(work.operators), work.peaks(order)
    if after == before or any(new > old for new, old in zip(after, before, strict=True)):
        return
    output = backward.graph.output_node()
    for node in work.in_place(order):
        output.prepend(node)
    renew_code(backward)
    _log.info(
        "The backward pass is reordered. It holds at most %s at once instead of %s as a compiler fuses it, and %s "
        "instead of %s operator by operator.",
        bytes_name(after[0]), bytes_name(before[0]), bytes_name(after[1]), bytes_name(before[1]),
    )  # fmt: skip


@dataclass
class _Work:
    """A backward graph.

    Attributes:
        given: its inputs.
        nodes: all others but the output, in order.
        free: those of them that move no data.
        operators: the others, in order.
        barriers: those that are kernels of their own.
        fences: those that nothing moves across.
        gradients: those that are not recomputed.
        memories: node -> memory that is not alive all the time -> bytes.
        reads: node -> such memory that it reads.
        returned: memory that is alive to the end.
        held: bytes that are alive all the time.
    """

    given: list[Node]
    nodes: list[Node]
    free: set[Node]
    operators: list[Node]
    barriers: set[Node]
    fences: set[Node]
    gradients: set[Node]
    memories: dict[Node, dict[Any, int]]
    reads: dict[Node, list[Any]]
    returned: set[Any]
    held: int

    def kernels(self) -> list[Kernel]:
        """As a compiler makes them between two fences, in the order in which they end."""
        kernels = fused_in(self.nodes, readers_of(self.nodes, self.free), self.barriers, self.free)
        found: dict[tuple[Node, int], Kernel] = {}
        part = 0
        for node in self.operators:
            part += node in self.fences
            found.setdefault((kernels.get(node, node), part), []).append(node)
            part += node in self.fences
        turns = {node: i for i, node in enumerate(self.operators)}
        return sorted(found.values(), key=lambda kernel: turns[kernel[-1]])

    def tasks(self, kernels: Sequence[Kernel]) -> list[Task]:
        """What each kernel waits for, reads and leaves."""
        inputs = [{i for node in kernel for i in node.all_input_nodes} for kernel in kernels]
        makers: dict[Any, int] = {}
        kept: dict[Any, int] = {}  # when its maker has run
        for k, kernel in enumerate(kernels):
            for memory, size in self._memory(kernel).items():
                makers.setdefault(memory, k)
                if memory in self.returned:
                    kept[memory] = size
        for node in self.given:
            for memory in self.memories[node]:
                makers.pop(memory, None)
        reads: list[dict[Any, int]] = []
        for k, nodes in enumerate(inputs):
            read = {memory: size for memory, size in self._memory(nodes).items() if makers.get(memory) != k}
            kept |= read
            reads.append({memory: size for memory, size in read.items() if memory not in self.returned})
        leaves = [0] * len(kernels)
        for memory, size in kept.items():
            if memory in makers:
                leaves[makers[memory]] += size
        may_be_early = [not self.gradients.isdisjoint(kernel) for kernel in kernels]
        return [Task(*task) for task in zip(self._waits(kernels, inputs), reads, leaves, may_be_early, strict=True)]

    def _memory(self, nodes: Iterable[Node]) -> dict[Any, int]:
        return {memory: size for node in nodes for memory, size in self.memories[node].items()}

    def _waits(self, kernels: Sequence[Kernel], inputs: Sequence[Collection[Node]]) -> list[set[int]]:
        """For each kernel, the numbers of those that have to run before it."""
        number = {node: k for k, kernel in enumerate(kernels) for node in kernel}
        sources: dict[Node, set[int]] = {}
        for node in (*self.given, *self.nodes):
            before = (sources[i] for i in node.all_input_nodes)
            sources[node] = {number[node]} if node in number else set().union(*before)
        waits: list[set[int]] = []
        fence = 0
        for k, kernel in enumerate(kernels):
            waits.append(set().union(*(sources[i] for i in inputs[k])) - {k})
            if kernel[0] in self.fences:
                waits[k].update(range(fence, k))
                fence = k
            elif kernels[fence][0] in self.fences:
                waits[k].add(fence)
        return waits

    def in_place(self, order: Sequence[Node]) -> list[Node]:
        """All nodes: views and sizes right before the first operator that reads them, parts of tuples right after."""
        turns = {node: i for i, node in enumerate(order)}
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
        """The most bytes that are alive at once: as a compiler fuses operators, and if they run one by one."""
        nodes = [*self.given, *order]
        highest = []
        for barriers in (self.barriers, set(order)):
            at, steps = numbered(nodes, 0, barriers)
            uses = uses_of(nodes, at, self.memories, self.reads, barriers)
            spans = [use.span(steps - 1 if key in self.returned else 0) for key, use in uses.items()]
            highest.append(self.held + max(bytes_alive(spans, steps)))
        return highest[0], highest[1]


def _work(backward: GraphModule, sides: Sides) -> _Work:
    """What there is to do in a backward graph."""
    given = backward.graph.find_nodes(op="placeholder")
    nodes = [node for node in backward.graph.nodes if node.op not in ("placeholder", "output")]
    everything = {node: storages(node) for node in (*given, *nodes)}
    fences = _fences(nodes)
    free = {node for node in nodes if node not in fences and is_free(node, everything.__getitem__)}
    operators = [node for node in nodes if node not in free]
    barriers = {node for node in operators if not is_cheap(node)}
    held = {key: size for node in (*sides.inputs, *sides.outputs) for key, size in storages(node).items()}
    always = {*held, *(key for node in nodes if node.op == "get_attr" for key in everything[node])}
    memories = {node: {key: size for key, size in own.items() if key not in always} for node, own in everything.items()}
    returned = {key for node in output_nodes(backward) if node is not None for key in memories[node]}
    late = {node.name for node in sides.backward}
    gradients = {node for node in nodes if node.name in late}
    reads = reads_of(operators, memories, free)
    return _Work(
        given, nodes, free, operators, barriers, fences, gradients, memories, reads, returned, sum(held.values())
    )


def _fences(nodes: Iterable[Node]) -> set[Node]:
    """Those that nothing may move across, as they do more than to compute tensors from tensors."""
    known: dict[Any, bool] = {}
    fences: set[Node] = set()
    for node in nodes:
        draws = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())  # attention: only if it drops
        which = node.target if hasattr(node.target, "overloadpacket") and not draws else node
        if which not in known:
            known[which] = node.op != "get_attr" and _stays(node)
        if known[which]:
            fences.add(node)
    return fences


def _stays(node: Node) -> bool:
    """Whether nothing may move across a node, as it does more than to compute tensors from tensors."""
    reads_data = torch.Tag.data_dependent_output in getattr(node.target, "tags", ())  # for a number
    return keeps_order(node) or changes_inputs(node) or reads_data
