"""Which memory the nodes of graphs lie in, and from when to when it is alive while they run, operation by operation."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from torch.fx import GraphModule, Node

from aotkit.inspection.saved import COPIED, kept_outputs, saved_nodes, saved_values
from aotkit.passes import output_nodes, placeholders, temporary_bytes

if TYPE_CHECKING:
    from aotkit.inspection.graphs import Graphs

Span = tuple[int, int, int]  # first step, last step, bytes


@dataclass(eq=False)
class Memory:
    """One storage while it is alive, and its size in bytes. What is computed twice is in two of them."""

    nbytes: int


def memories(gm: GraphModule, given: Sequence[Sequence[Memory]] = ()) -> dict[Node, Mapping[Hashable, Memory]]:
    """The memory of each node's tensors, by their fake storages: a view's is that of what it views.

    Args:
        given: the memory of the first placeholders that are tensors.
    """
    from aotkit.passes import storages

    found: dict[Node, Mapping[Hashable, Memory]] = {}
    shared: dict[Hashable, Memory] = {}  # placeholders may be views of one another
    rest = iter(given)
    for node in gm.graph.nodes:
        own = storages(node)
        if node.op != "placeholder":
            seen = {key: memory for i in node.all_input_nodes for key, memory in found[i].items()}
            found[node] = {key: seen.get(key) or Memory(size) for key, size in own.items()}
        elif own and (placed := next(rest, ())):
            found[node] = dict(zip(own, placed, strict=True))
        else:
            found[node] = {key: shared.setdefault(key, Memory(size)) for key, size in own.items()}
    return found


def bytes_alive(spans: Iterable[Span], steps: int) -> list[int]:
    """For each step, the bytes of all spans that it lies in."""
    changes = [0] * (steps + 1)
    for first, last, nbytes in spans:
        changes[first] += nbytes
        changes[last + 1] -= nbytes
    return list(accumulate(changes[:-1]))


@dataclass(eq=False)
class Lifetime:
    """Of one storage.

    Attributes:
        held: why it lives: as "input", "constant", "output", "saved", "tangent", "gradient" or "temporary".
        first, last: the steps between which it is alive, both included.
    """

    memory: Memory
    held: str
    first: int
    last: int


@dataclass
class Lifetimes:
    """Of all storages of two graphs.

    Attributes:
        steps: all nodes but the outputs, in the order of the program: those of forward, then those of backward.
        storages: in the order in which they come to life.
        of_node: node -> the indices of its storages.
    """

    steps: list[Node]
    storages: list[Lifetime]
    of_node: dict[Node, list[int]]

    def live_bytes(self, held: Sequence[str]) -> list[int]:
        """The bytes that are alive while each step runs, of the storages that are held as one of `held`."""
        spans = [(s.first, s.last, s.memory.nbytes) for s in self.storages if s.held in held]
        return bytes_alive(spans, len(self.steps))


def lifetimes(graphs: "Graphs") -> Lifetimes:
    """Follow each storage through both graphs, run node by node, where each value is freed after its last use.

    A saved value lives at least until backward begins, an output and a gradient to the end, a tangent from the first
    step of backward. Inputs and constants live all the time: they belong to the caller. A copy that the compiler keeps
    of them lives from the first step that reads what it is a copy of.
    """
    forward, backward = graphs.forward, graphs.backward
    known = memories(forward)
    saved = saved_nodes(graphs)
    copies = {v.name: Memory(v.nbytes or 0) for v in saved_values(graphs) if v.reason == COPIED}
    if backward is not None:
        given = [[copies[n.name]] if n.name in copies else [*known[n].values()] for n in saved if known[n]]
        known = known | memories(backward, given)
    steps = [n for gm in (forward, backward) if gm is not None for n in gm.graph.nodes if n.op != "output"]
    found = _uses(steps, known)
    backward_begins, end = len(forward.graph.nodes) - 1, len(steps) - 1
    step_of = {node: step for step, node in enumerate(steps)}
    for original in (node for node in saved if node.name in copies):
        copy = found[copies[original.name]]
        copy.held = "saved"
        copy.first = min(step_of.get(user, backward_begins - 1) for user in original.users)
    for node in [*output_nodes(forward)[: graphs.num_outputs], *saved]:
        for memory in known[node].values() if node is not None else ():
            found[memory].last = max(found[memory].last, backward_begins - 1)
    gradients = [node for node in output_nodes(backward) if node is not None] if backward is not None else []
    tangents = [p for p in placeholders(backward) if any(found[m].first >= backward_begins for m in known[p].values())]
    holders: list[tuple[str, Iterable[Node], int, int]] = [  # alive from that step at the latest, to that at the least
        ("tangent", tangents, backward_begins, 0),
        ("saved", saved, end, 0),
        ("gradient", gradients, end, end),
        ("output", kept_outputs(graphs), end, end),
        ("constant", (node for node in steps if node.op == "get_attr"), 0, end),
        ("input", placeholders(forward), 0, end),
    ]
    for held, nodes, first, last in holders:  # a later one decides
        for lifetime in (found[memory] for node in nodes for memory in known[node].values()):
            lifetime.held = held
            lifetime.first = min(lifetime.first, first)
            lifetime.last = max(lifetime.last, last)
    for step, node in enumerate(steps):
        if nbytes := temporary_bytes(node):
            memory = Memory(nbytes)
            found[memory] = Lifetime(memory, "temporary", step, step)
    index = {memory: i for i, memory in enumerate(found)}
    of_node = {node: [index[memory] for memory in known[node].values()] for node in steps}
    return Lifetimes(steps, list(found.values()), of_node)


def _uses(steps: Sequence[Node], known: Mapping[Node, Mapping[object, Memory]]) -> dict[Memory, Lifetime]:
    """Each memory from the first to the last step that reads or writes it."""
    uses: dict[Memory, Lifetime] = {}
    for step, node in enumerate(steps):
        for memory in (memory for n in (node, *node.all_input_nodes) for memory in known[n].values()):
            uses.setdefault(memory, Lifetime(memory, "temporary", step, step)).last = step
    return uses
