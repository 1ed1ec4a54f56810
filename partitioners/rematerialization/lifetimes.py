"""When each value of a joint graph is in memory: what is saved for the backward pass, and what is recomputed there.

Time is counted in steps. A *barrier* (a matrix product, a convolution, attention, sorting) is a step of its own; what
is cheap between two barriers is one step, as compilers fuse it: what is made and read within one step never gets into
memory, and what such a step makes takes the place of what it reads for the last time. Backward runs in the order of the
joint graph, and recomputes each value just before it is first read, so the steps are the same whatever is saved. What
`order` changes about that later can only lower the peak.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

from torch.fx import Node

from aotkit.inspection import Span, bytes_alive
from aotkit.joint import Sides
from aotkit.partitioners.rematerialization.values import Values, is_cheap
from aotkit.passes import is_tensor, producer, temporary_bytes


@dataclass
class Lifetimes:
    """Steps are numbered from the first of forward to the last of backward. Lists have one entry for each value.

    Attributes:
        inputs: the values that each is computed from.
        steps: how many there are.
        memory: the value whose memory it is: of a view, its base.
        size: bytes of the memory that a value makes and that is not alive anyway.
        barrier: whether computing it is a step of its own.
        saved_from: the step from which its memory is alive only if it is saved.
        first: the first step of backward that reads the value itself; None: none does.
        last: the last one that reads its memory, or the first of all.
        fixed: for each step, the bytes that are alive whatever is saved.
        held: those of inputs and parameters, which are alive at all steps.
    """

    inputs: Sequence[Sequence[int]]
    steps: int
    memory: list[int]
    size: list[int]
    barrier: list[bool]
    saved_from: list[int]
    first: list[int | None]
    last: list[int]
    fixed: list[int]
    held: int

    def spans(self, saved: Collection[int], recomputed: Sequence[int]) -> list[Span]:
        """When saved and recomputed values, these in the order of the graph, are alive.

        What they are recomputed from besides is saved elsewhere; here it counts for as long as it is kept for this.
        """
        never, memory, barrier = self.steps, self.memory, self.barrier
        start = {i: never if (first := self.first[i]) is None else first for i in recomputed}
        end = {(owner := memory[i]): self.last[owner] for i in (*saved, *recomputed)}
        longer: dict[int, int] = {}
        written = set[int]()
        # The search for a peak calls this thousands of times: comparisons are twice as fast as `min` and `max`.
        for i in reversed(recomputed):
            begin = start[i]
            for j in self.inputs[i]:
                owner = memory[j]
                if begin < start.get(j, never):
                    start[j] = begin
                until = end if owner in end else longer
                if begin > until.get(owner, 0):
                    until[owner] = begin
                if barrier[i]:
                    written.add(owner)
        spans = [(self.saved_from[i], end[i], self.size[i]) for i in saved if self.size[i]]
        for i in recomputed:
            if self.size[i] and (self.barrier[i] or end[i] > start[i] or i in written):
                spans.append((min(start[i] + (not self.barrier[i]), end[i]), end[i], self.size[i]))
        for i, step in longer.items():
            if step > self.last[i]:
                spans.append((self.last[i] + 1, step, self.size[i]))
        return spans


def lifetimes(values: Values, sides: Sides) -> Lifetimes:
    """Of all values of a joint graph, however it is cut."""
    nodes = values.nodes
    number = {node: i for i, node in enumerate(nodes)}
    graph = nodes[0].graph
    memories = values.memories
    gradients = [node for node in graph.nodes if node in sides.backward and node.op != "output"]
    early = list(compress(nodes, values.in_forward))
    barriers = {node for node in graph.nodes if node.op == "call_function" and not is_cheap(node)}
    at, turn = numbered(early, 0, barriers)
    at_backward, steps = numbered(gradients, turn, barriers)
    first: list[int | None] = [None] * len(nodes)
    last = [turn] * len(nodes)

    def read(step: int, inputs: Iterable[int]) -> None:
        for i in inputs:
            before = first[i]
            first[i] = step if before is None else min(step, before)
            last[i] = max(step, last[i])

    for node in gradients:
        read(at_backward[node], (number[i] for i in node.all_input_nodes if i in number))
    read(steps - 1, (number[node] for node in sides.needed if first[number[node]] is None))  # gradients themselves
    late: list[Node] = []
    for i in reversed(range(len(nodes))):
        step = first[i]
        if step is not None and not values.in_forward[i]:
            read(step, values.inputs[i])
            late.append(nodes[i])
            at_backward[nodes[i]] = step

    inputs = {memory: nbytes for node in sides.inputs for memory, nbytes in memories[node].items()}
    outputs = {memory for node in sides.outputs for memory in memories[node]}
    forward = uses_of(early, at, memories, values.free, barriers)
    backward = uses_of([*reversed(late), *gradients], at_backward, memories, values.free, barriers)
    results = [node for node in gradients if any(user.op == "output" for user in node.users)]
    returned = {memory for node in results for memory in memories[node]}
    held = sum(inputs.values())
    spans = [(0, steps - 1, held)]
    spans += [use.span(steps - 1 if key in outputs else 0) for key, use in forward.items() if key not in inputs]
    spans += [use.span(steps - 1 if key in returned else 0) for key, use in backward.items() if key not in forward]
    spans += [(at[node], at[node], nbytes) for node in early if (nbytes := temporary_bytes(node))]
    owner: dict[Any, int] = {}
    memory = list(range(len(nodes)))
    size, saved_from = [0] * len(nodes), [0] * len(nodes)
    for i, node in enumerate(nodes):
        if not is_tensor(node):
            continue
        for key, nbytes in memories[node].items():
            memory[i] = owner.setdefault(key, i)
            if memory[i] == i and key in forward and key not in inputs and key not in outputs:
                size[i] += nbytes
                saved_from[i] = forward[key].read + 1
    for i, owner_of_i in enumerate(memory):
        last[owner_of_i] = max(last[owner_of_i], last[i])
    barrier = [not is_cheap(producer(node)) for node in nodes]
    fixed = bytes_alive(spans, steps)
    return Lifetimes(values.inputs, steps, memory, size, barrier, saved_from, first, last, fixed, held)


@dataclass
class Use:
    """Of some memory: the steps that make it and last read it.

    Attributes:
        written: whether a barrier makes it, or it is an input.
    """

    made: int
    read: int
    written: bool
    nbytes: int

    def span(self, until: int) -> Span:
        """When it is alive, at least up to some step."""
        start, end = self.made + (not self.written), max(self.read, until)
        return min(start, end), end, self.nbytes if start <= end else 0


def numbered(nodes: Iterable[Node], step: int, barriers: Collection[Node]) -> tuple[dict[Node, int], int]:
    """The step of each node, and the first one after all of them."""
    at = {}
    for node in nodes:
        is_barrier = node in barriers
        at[node] = step = step + is_barrier
        step += is_barrier
    return at, step + 1


def uses_of(
    nodes: Sequence[Node],
    at: Mapping[Node, int],
    memories: Mapping[Node, Mapping[Any, int]],
    free: Collection[Node],
    barriers: Collection[Node],
) -> dict[Any, Use]:
    """Of all memory that nodes make or are given; `free` are those that read nothing."""
    uses: dict[Any, Use] = {}
    for node in nodes:
        step = at[node]
        for key, nbytes in memories[node].items():
            if key not in uses:
                uses[key] = Use(step, step, node in barriers or node.op == "placeholder", nbytes)
        for source in () if node in free else node.all_input_nodes:
            for key in memories[source]:
                if key in uses:
                    uses[key].read = step
    return uses
