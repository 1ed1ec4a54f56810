"""The memory that kernels read and write."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from torch.fx import GraphModule, Node

from aotkit.inspection.nodes import bytes_of, nbytes_of, storage_roots
from aotkit.passes import output_nodes, packet_name, producer, tensors_of
from aotkit.text import sum_known

# Operators that read as many elements of their first input as they return, not all of it.
_LOOKUPS = frozenset({"embedding", "index", "_unsafe_index", "gather", "index_select", "take"})


def traffic(gm: GraphModule, kernels: Sequence[Iterable[str]]) -> list[tuple[int | None, int | None]]:
    """Of each kernel the bytes that it reads and writes: the distinct memory that crosses its edges, each part once.

    None if a size depends on data. A value that several kernels compute is written by the first of them, if any reads
    it without computing it.

    Args:
        kernels: names of the operations in each, in the order in which they run.
    """
    from aotkit.passes import changes_inputs

    nodes = {n.name: n for n in gm.graph.nodes}
    homes: dict[Node, list[int]] = defaultdict(list)
    for i, names in enumerate(kernels):
        for name in names:
            homes[nodes[name]].append(i)
    roots = storage_roots(gm)
    read: list[dict[Node, int | None]] = [{} for _ in kernels]
    written: list[set[Node]] = [set() for _ in kernels]

    def needed(value: Node) -> None:
        """Something reads it that does not compute it."""
        if makers := homes.get(producer(roots[value])):
            written[makers[0]].add(roots[value])

    for node, places in homes.items():
        for source in () if _reads_no_values(node) else node.all_input_nodes:
            made = homes.get(producer(roots[source]), ())
            for i in places:
                if i not in made:
                    before, now = read[i].get(source, 0), _read_of(node, source)
                    read[i][source] = None if before is None or now is None else max(before, now)
                    needed(source)
        if changes_inputs(node):
            written[places[0]].add(node)
    for result in output_nodes(gm):
        if result is not None:
            needed(result)
    results = [{node: bytes_of(node) for node in nodes} for nodes in written]
    return [(_bytes(r, roots), _bytes(w, roots)) for r, w in zip(read, results, strict=True)]


def _reads_no_values(node: Node) -> bool:
    """Whether it makes a tensor of the shape and type of another one."""
    name = packet_name(node)
    return name.startswith("new_") or name.endswith("_like")


def _read_of(node: Node, source: Node) -> int | None:
    """How much an operation reads of an input: of a table in which it looks things up no more than it finds."""
    size, found = bytes_of(source), bytes_of(node)
    if not looks_up_in(source, node) or size is None:
        return size
    return None if found is None else min(size, found)


def looks_up_in(source: Node, node: Node) -> bool:
    """Whether an operation reads as many elements of one of its inputs as it returns, not all of it."""
    return packet_name(node) in _LOOKUPS and source is node.all_input_nodes[0]


def _bytes(sizes: Mapping[Node, int | None], roots: Mapping[Node, Node]) -> int | None:
    """Views of one memory count as much as is read of each, together at most all of it."""
    shown: dict[Node, int | None] = {}
    for value, size in sizes.items():
        whole = sum_known(nbytes_of(tensor, whole=True) for tensor in tensors_of(value))
        together = sum_known([shown.get(roots[value], 0), size])
        shown[roots[value]] = None if together is None or whole is None else min(together, whole)
    return sum_known(shown.values())
