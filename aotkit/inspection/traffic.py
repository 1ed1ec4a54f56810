"""The memory that kernels read and write."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch.fx import GraphModule, Node

from aotkit.aot.effects import changes_inputs
from aotkit.inspection.costs import nbytes_of, tensors_of
from aotkit.inspection.nodes import output_nodes, producer, storages


class Traffic(NamedTuple):
    """Bytes that a kernel reads and writes; None if a size depends on data."""

    read: int | None
    written: int | None


def traffic(gm: GraphModule, kernels: Sequence[Iterable[str]]) -> list[Traffic]:
    """Of each kernel the distinct memory that crosses its edges, each part of it once.

    A value that several kernels compute is written by the first of them, if any reads it without computing it.

    Args:
        kernels: names of the operations in each, in the order in which they run.
    """
    nodes = {n.name: n for n in gm.graph.nodes}
    homes: dict[Node, list[int]] = defaultdict(list)
    for i, names in enumerate(kernels):
        for name in names:
            homes[nodes[name]].append(i)
    roots = storages(gm)
    read: list[set[Node]] = [set() for _ in kernels]
    written: list[set[Node]] = [set() for _ in kernels]

    def needed(value: Node) -> None:
        """Something reads it that does not compute it."""
        if makers := homes.get(producer(roots[value])):
            written[makers[0]].add(roots[value])

    for node, places in homes.items():
        for source in node.all_input_nodes:
            made = homes.get(producer(roots[source]), ())
            for i in places:
                if i not in made:
                    read[i].add(source)
                    needed(source)
        if changes_inputs(node):
            written[places[0]].add(node)
    for result in output_nodes(gm):
        if result is not None:
            needed(result)
    return [Traffic(_bytes(r, roots), _bytes(w, roots)) for r, w in zip(read, written, strict=True)]


def _bytes(values: Iterable[Node], roots: dict[Node, Node]) -> int | None:
    """Views of one memory count as much as they show of it, together at most all of it."""
    shown: dict[Node, int] = defaultdict(int)
    whole: dict[Node, int] = {}
    for value in values:
        for tensor in tensors_of(value):
            size, memory = nbytes_of(tensor), nbytes_of(tensor, whole=True)
            if size is None or memory is None:
                return None
            shown[roots[value]] += size
            whole[roots[value]] = max(memory, whole.get(roots[value], 0))
    return sum(min(size, whole[root]) for root, size in shown.items())
