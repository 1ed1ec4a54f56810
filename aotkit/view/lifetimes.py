"""From when to when each piece of memory is alive while forward and then backward run, operation by operation."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch.fx import GraphModule, Node

from aotkit.inspection.memory import Memory, bytes_alive, memories
from aotkit.inspection.nodes import output_nodes
from aotkit.inspection.saved import kept_outputs, saved_values

if TYPE_CHECKING:
    from aotkit.graphs import Graphs


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
    storages: list[Lifetime] = field(default_factory=list)
    of_node: dict[Node, list[int]] = field(default_factory=dict)

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
    saved = [node for node in output_nodes(forward)[graphs.num_outputs :] if node is not None]
    copies = {v.name: Memory(v.nbytes or 0) for v in saved_values(graphs) if v.name in graphs.copied}
    if backward is not None:
        given = [[copies[n.name]] if n.name in copies else [*known[n].values()] for n in saved if known[n]]
        known = known | memories(backward, given)
    both = [gm for gm in (forward, backward) if gm is not None]
    result = Lifetimes([node for gm in both for node in gm.graph.nodes if node.op != "output"])
    forward_steps = len(forward.graph.nodes) - 1
    found = {memory: Lifetime(memory, "temporary", *ends) for memory, ends in _uses(result.steps, known).items()}
    end = len(result.steps) - 1
    step_of = {node: step for step, node in enumerate(result.steps)}
    for original in (node for node in saved if node.name in copies):
        found[copies[original.name]].held = "saved"
        found[copies[original.name]].first = min(step_of.get(user, forward_steps - 1) for user in original.users)
    gradients = [node for node in output_nodes(backward) if node is not None] if backward is not None else []
    tangents = [p for p in _placeholders(backward) if any(found[m].first >= forward_steps for m in known[p].values())]
    for node in [*output_nodes(forward)[: graphs.num_outputs], *saved]:
        for memory in known[node].values() if node is not None else ():
            found[memory].last = max(found[memory].last, forward_steps - 1)
    holders: list[tuple[str, Iterable[Node], int | None, int | None]] = [
        ("tangent", tangents, forward_steps, None),
        ("saved", saved, None, None),
        ("gradient", gradients, None, end),
        ("output", kept_outputs(graphs), None, end),
        ("constant", (node for node in result.steps if node.op == "get_attr"), 0, end),
        ("input", _placeholders(forward), 0, end),
    ]
    for held, nodes, first, last in holders:  # a later one decides
        for memory in (memory for node in nodes for memory in known[node].values()):
            lifetime = found[memory]
            lifetime.held = held
            lifetime.first = lifetime.first if first is None else first
            lifetime.last = lifetime.last if last is None else last
    result.storages = list(found.values())
    index = {storage.memory: i for i, storage in enumerate(result.storages)}
    result.of_node = {node: [index[memory] for memory in known[node].values()] for node in result.steps}
    return result


def _placeholders(gm: GraphModule | None) -> Iterator[Node]:
    return iter(gm.graph.find_nodes(op="placeholder") if gm is not None else ())


def _uses(steps: Sequence[Node], known: Mapping[Node, Mapping[object, Memory]]) -> dict[Memory, tuple[int, int]]:
    """The first and the last step that reads or writes each memory."""
    uses: dict[Memory, tuple[int, int]] = {}
    for step, node in enumerate(steps):
        for memory in (memory for n in (node, *node.all_input_nodes) for memory in known[n].values()):
            uses[memory] = uses.get(memory, (step, step))[0], step
    return uses
