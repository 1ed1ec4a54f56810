"""A graph of which parts are compiled: the order of the parts, and a function that runs them one after the other."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Graph, GraphModule, Node

from aotkit.interfaces import Boxed
from aotkit.passes import Region, producer, results_of
from aotkit.stages.calls import Product
from aotkit.stages.graph_launches import Sequential, Step
from aotkit.stages.regions.finding import Operations
from aotkit.stages.regions.quotient_graph import in_order
from aotkit.torch_private.fx import boxed, graph_module


@dataclass
class Part:
    """Nodes that run together.

    Attributes:
        nodes: in the order of the graph, with `sources`.
        sources: those that other parts may compute, too: constants, and views of what it reads.
        choice: the backend that takes them; None: they run as they are.
        inputs: what they read of others.
        outputs: those whose values others read.
        failure: why the backend failed, if it did.
        region: what tells of them.
        by: the backend that compiles them, once that is known: `choice`, or another one instead.
        digest: of their graph, then.
    """

    nodes: list[Node]
    choice: Any = None
    sources: frozenset[Node] = frozenset()
    inputs: list[Node] = field(default_factory=list)
    outputs: list[Node] = field(default_factory=list)
    failure: str | None = None
    region: Region | None = None
    by: Any = None
    digest: str = ""


def inputs_of(nodes: Sequence[Node]) -> list[Node]:
    """What nodes read of others: tensors and sizes, in the order of the graph."""
    inside = set(nodes)
    return sorted({i for n in nodes for i in n.all_input_nodes if i not in inside and not _is_subgraph(i)})


def _is_subgraph(node: Node) -> bool:
    """Whether it stands for a graph that an operator of higher order calls."""
    return node.op == "get_attr" and isinstance(getattr(node.graph.owning_module, str(node.target), None), GraphModule)


def subgraph(gm: GraphModule, nodes: Iterable[Node], inputs: Sequence[Node], outputs: Sequence[Any]) -> GraphModule:
    """A graph of these nodes, with their names and notes. Graphs that they call come with them.

    Args:
        outputs: nodes, and constants such as None, which it returns as they are.
    """
    graph, copies = Graph(), dict[Node, Node]()
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    nodes = set(nodes)
    called = {i for n in nodes for i in n.all_input_nodes if i not in copies and i not in nodes}
    for node in sorted(nodes | called):
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[n] if isinstance(n, Node) else n for n in outputs))
    return graph_module(gm, graph)


def computing(gm: GraphModule, known: Sequence[Node], results: Sequence[Any]) -> GraphModule:
    """The part of a graph that computes results of what is known; its inputs are what it reads of that, in order."""
    needed, given = {r for r in results if isinstance(r, Node)}, set(known)
    for node in reversed(gm.graph.nodes):
        if node in needed and node not in given:
            needed.update(node.all_input_nodes)
    return subgraph(gm, needed - given, [n for n in known if n in needed], results)


def places_read(known: Sequence[Node], part: GraphModule) -> list[int]:
    """Which of the known nodes such a part reads."""
    read = {n.name for n in part.graph.find_nodes(op="placeholder")}
    return [i for i, n in enumerate(known) if n.name in read]


def parts_in_order(gm: GraphModule, ops: Operations, regions: Sequence[Part]) -> list[Part]:
    """The regions, and between them what is left of the graph, in an order in which each has what it reads.

    Sets the outputs of the regions.
    """
    home: dict[Node, Any] = {n: i for i, part in enumerate(regions) for n in part.nodes if n not in part.sources}
    again: set[Node] = set()
    for i, part in enumerate(regions):
        part.outputs, views = ops.leaving([n for n in part.nodes if home.get(n) == i and producer(n) is n])
        again.update(views)
    rest = [n for n in gm.graph.nodes if _runs(n) and n not in ops.constants and (n not in home or n in again)]
    rest = _read_by_others(rest, regions)
    outside = sorted({*rest, *_constants_read([*rest, gm.graph.output_node()], regions, ops)})
    home.update((n, n) for n in outside)

    def places(nodes: Iterable[Node]) -> set[Any]:
        return {home[n] for n in nodes if n in home}

    def effects(nodes: Iterable[Node]) -> Iterable[Node]:
        return (a for n in nodes for a in ops.after.get(n, ()) if a not in ops.reads[n])

    after: dict[Any, set[Any]] = {n: places([*n.all_input_nodes, *effects([n])]) for n in outside}
    after |= {i: places([*part.inputs, *effects(part.nodes)]) - {i} for i, part in enumerate(regions)}

    def position(place: Any) -> int:
        last = place if isinstance(place, Node) else regions[place].nodes[-1]
        return 2 * ops.position[last] + (last is not place)

    order = in_order(after, position)
    parts: list[Part] = []
    for place in order:
        if not isinstance(place, Node):
            parts.append(regions[place])
        elif parts and parts[-1].choice is None:
            parts[-1].nodes.append(place)
        else:
            parts.append(Part([place]))
    return parts


def _runs(node: Node) -> bool:
    return node.op not in ("placeholder", "output") and not _is_subgraph(node)


def _read_by_others(rest: Sequence[Node], regions: Sequence[Part]) -> list[Node]:
    """Without the views that only regions read which take them as well."""
    sources = {n for part in regions for n in part.sources}
    read = {n for part in regions for n in part.inputs}
    kept: list[Node] = []
    for node in reversed(rest):
        if node not in sources or node in read or any(user.op == "output" for user in node.users):
            kept.append(node)
            read.update(node.all_input_nodes)
    return kept[::-1]


def _constants_read(outside: Iterable[Node], regions: Sequence[Part], ops: Operations) -> set[Node]:
    """The constants that are computed outside of regions: for what is there, or as input of a region."""
    stack = [i for n in outside for i in n.all_input_nodes] + [i for part in regions for i in part.inputs]
    found: set[Node] = set()
    while stack:
        if (node := stack.pop()) in ops.constants and node not in found:
            found.add(node)
            stack += node.all_input_nodes
    return found


def run_parts(gm: GraphModule, parts: Sequence[Part], compile: Callable[[Part], tuple[Boxed, Product]]) -> Sequential:
    """A function that runs parts one after the other, and lets go of each value after its last use.

    Args:
        compile: makes of a part a function, and what tells of its kernels.
    """
    results = results_of(gm)
    live = {n for n in results if isinstance(n, Node)}
    frees: list[set[Node]] = []
    for part in reversed(parts):
        if part.choice is None:
            part.nodes.sort()
            part.inputs = inputs_of(part.nodes)
            part.outputs = [n for n in part.nodes if n in live]
        frees.append(set(part.inputs) - live)
        live = live.difference(part.outputs).union(part.inputs)
    slots = {n: i for i, n in enumerate(gm.graph.find_nodes(op="placeholder"))}
    steps = []
    for part, done in zip(parts, reversed(frees), strict=True):
        if part.choice is None:
            as_it_is = subgraph(gm, part.nodes, part.inputs, part.outputs)
            run, product = boxed(as_it_is), Product(as_it_is, as_it_is)
        else:
            run, product = compile(part)
        takes = [slots[n] for n in part.inputs]
        first = len(slots)
        slots.update((n, first + i) for i, n in enumerate(part.outputs))
        steps.append(Step(product, run, takes, [slots[n] for n in sorted(done)], slice(first, len(slots))))
    constants = [None if isinstance(r, Node) else r for r in results]
    where = [slots[r] if isinstance(r, Node) else len(slots) + i for i, r in enumerate(results)]
    return Sequential(steps, [None] * len(slots), constants, where)
