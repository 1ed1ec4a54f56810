"""The order of the backward pass: what frees at least as much memory as it takes runs as soon as it can.

The gradients of a weight and of an activation are computed from the same gradient, and one of them may be the last to
read something large: that one should come first. What frees nothing keeps its turn, and so does what is recomputed,
just before its first reader. What a compiler would fuse moves together. Such an order is taken if the backward pass
holds less with it as a compiler fuses it, or operator by operator, and more in neither case. Nothing moves across an
operator that draws random numbers, communicates, writes into its inputs, or may have another effect.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from operator import getitem
from typing import Any

import torch
from torch.fx import GraphModule, Node

from aotkit.inspection import bytes_alive
from aotkit.joint import Sides
from aotkit.partitioners.rematerialization.fusion import kernels_of, readers_of
from aotkit.partitioners.rematerialization.lifetimes import numbered, uses_of
from aotkit.partitioners.rematerialization.values import is_cheap, is_free
from aotkit.passes import changes_inputs, keeps_order, output_nodes, storages
from aotkit.text import bytes_name
from aotkit.torch_private.fx import renew_code

_log = logging.getLogger("aotkit")
Kernel = list[Node]


@dataclass(frozen=True)
class Task:
    """What runs without interruption.

    Attributes:
        after: the numbers of the tasks that have to run before it.
        reads: memory that it reads, and that is freed when the last of its readers has run -> bytes.
        leaves: bytes that it makes and that are in memory when it has run.
        may_be_early: whether it may run before its turn.
    """

    after: Collection[int]
    reads: Mapping[Any, int]
    leaves: int
    may_be_early: bool


def frees_first(tasks: Sequence[Task]) -> list[int]:
    """The order in which to run tasks, by their numbers, which are their turns.

    Of those that can run, the first one that frees at least as many bytes as it leaves is next; if there is none, the
    first one of all.
    """
    order: dict[int, None] = {}
    missing = [len(task.after) for task in tasks]
    growth = [task.leaves for task in tasks]
    users: list[list[int]] = [[] for _ in tasks]
    readers: dict[Any, set[int]] = {}
    for i, task in enumerate(tasks):
        for other in task.after:
            users[other].append(i)
        for memory in task.reads:
            readers.setdefault(memory, set()).add(i)
    turns: list[int] = []  # a heap of all that can run; some of them have, early
    early: list[int] = []  # a heap of those among them that free enough

    def offer(i: int) -> None:
        if not missing[i] and tasks[i].may_be_early and growth[i] <= 0:
            heappush(early, i)

    def look_for_last_reader(memory: Any) -> None:
        if len(readers[memory]) == 1:
            (i,) = readers[memory]
            growth[i] -= tasks[i].reads[memory]
            offer(i)

    def let_run(i: int) -> None:
        heappush(turns, i)
        offer(i)

    for memory in readers:
        look_for_last_reader(memory)
    for i, count in enumerate(missing):
        if not count:
            let_run(i)
    while turns:
        i = heappop(early or turns)
        if i in order:
            continue
        order[i] = None
        for memory in tasks[i].reads:
            readers[memory].remove(i)
            look_for_last_reader(memory)
        for user in users[i]:
            missing[user] -= 1
            if not missing[user]:
                let_run(user)
    return list(order)


def lower_peak(backward: GraphModule, sides: Sides) -> None:
    """Reorder a backward graph, in place, if that lowers the most that it holds at once.

    Args:
        sides: of the joint graph that it is a part of.
    """
    work = _Work(backward, sides)
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


class _Work:
    """A backward graph.

    Attributes:
        given: its inputs.
        nodes: all others but the output, in order.
        fences: those of them that nothing moves across.
        free: those that move no data.
        operators: the others, in order.
        barriers: those that are kernels of their own.
        gradients: those that are not recomputed.
        held: bytes that are alive all the time.
        memories: node -> memory that is not alive all the time -> bytes.
        returned: such memory that is alive to the end.
    """

    def __init__(self, backward: GraphModule, sides: Sides) -> None:
        self.given = backward.graph.find_nodes(op="placeholder")
        self.nodes = [node for node in backward.graph.nodes if node.op not in ("placeholder", "output")]
        everything = {node: storages(node) for node in (*self.given, *self.nodes)}
        self.fences = {node for node in self.nodes if _is_fence(node)}
        self.free = {n for n in self.nodes if n not in self.fences and is_free(n, everything.__getitem__)}
        self.operators = [node for node in self.nodes if node not in self.free]
        self.barriers = {node for node in self.operators if not is_cheap(node)}
        late = {node.name for node in sides.backward}
        self.gradients = {node for node in self.nodes if node.name in late}
        held = {key: size for node in (*sides.inputs, *sides.outputs) for key, size in storages(node).items()}
        self.held = sum(held.values())
        always = {*held, *(key for node in self.nodes if node.op == "get_attr" for key in everything[node])}
        self.memories = {
            node: {key: size for key, size in own.items() if key not in always} for node, own in everything.items()
        }
        self.returned = {key for node in output_nodes(backward) if node is not None for key in self.memories[node]}

    def kernels(self) -> list[Kernel]:
        """As a compiler makes them between two fences, in the order in which they end."""
        kernels = kernels_of(self.nodes, readers_of(self.nodes, self.free), self.barriers, self.free)
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
            uses = uses_of(nodes, at, self.memories, self.free, barriers)
            spans = [use.span(steps - 1 if key in self.returned else 0) for key, use in uses.items()]
            highest.append(self.held + max(bytes_alive(spans, steps)))
        return highest[0], highest[1]


def _is_fence(node: Node) -> bool:
    """Whether nothing may move across a node, as it does more than to compute tensors from tensors."""
    reads_data = torch.Tag.data_dependent_output in getattr(node.target, "tags", ())  # for a number
    return node.op != "get_attr" and (keeps_order(node) or changes_inputs(node) or reads_data)
