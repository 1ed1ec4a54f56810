"""Compute a cheap value in each kernel of the backward pass that reads it, where that moves fewer bytes.

Equal nodes of the joint graph are one node. Where kernels apart from one another read it, as those of two batch norms
that share a gradient do, a compiler that keeps it as one writes its value to memory, and reads it again. To compute it
again in each kernel, from what is in memory anyway, takes less: a kernel then reads that instead.
"""

from collections.abc import Collection, Sequence

from torch.fx import GraphModule, Node

from aotkit.partitioners.rematerialization.fusion import kernels_of, readers_of, viewed
from aotkit.partitioners.rematerialization.values import is_barrier, is_free
from aotkit.passes import changes_inputs, is_pointwise, is_random, is_tensor, output_nodes, storages
from aotkit.torch_private.fx import renew_code


def compute_where_read(backward: GraphModule) -> None:
    """Copy nodes of a backward graph, in place. The copy of `sub` is `sub_again`."""
    nodes = [node for node in backward.graph.nodes if node.op != "output"]
    if any(changes_inputs(node) for node in nodes):
        return  # a copy might read what has changed since
    kernels = _Kernels(nodes)
    returned = {viewed(node, kernels.free) for node in output_nodes(backward) if node is not None}
    for node in list(kernels.of):
        if not is_pointwise(node) or not is_tensor(node) or is_random(node) or node in returned:
            continue
        readers: dict[Node | None, list[Node]] = {}
        for reader in kernels.readers[node]:
            readers.setdefault(kernels.of.get(reader), []).append(reader)
        readers.pop(kernels.of[node], None)
        is_read_elsewhere = bool(readers) and None not in readers  # what a barrier reads is in memory in any case
        direct = all(reader in node.users for found in readers.values() for reader in found)
        if is_read_elsewhere and direct and _is_less(node, readers, kernels):
            for found in readers.values():
                _copy(node, found, kernels)
    renew_code(backward)


class _Kernels:
    """What is fused in a backward graph.

    Attributes:
        free: nodes that move no data.
        readers: node -> those that read it, through views.
        of: fused node -> its kernel, by one node of that.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        memories = {node: storages(node) for node in nodes}
        called = [node for node in nodes if node.op == "call_function"]
        self.free = {node for node in nodes if is_free(node, memories.__getitem__)}
        self.readers = readers_of(nodes, self.free)
        self.of = kernels_of(called, self.readers, {node for node in called if is_barrier(node, self.free)}, self.free)

    def sources(self, node: Node) -> set[Node]:
        """What a node reads, through views."""
        return {viewed(i, self.free) for i in node.all_input_nodes}


def _is_less(node: Node, others: Collection[Node | None], kernels: _Kernels) -> bool:
    """Whether to compute a value in other kernels, too, moves fewer bytes than to write it for them."""
    again = 0
    for source in kernels.sources(node):
        own = kernels.of.get(source)
        places = {kernels.of.get(reader) for reader in kernels.readers[source]} | {own}
        is_written = own is None or len(places) > 1
        again += _nbytes(source) * (sum(other not in places for other in others) + (not is_written))
    return again < _nbytes(node) * (1 + len(others))


def _nbytes(node: Node) -> int:
    return sum(storages(node).values())


def _copy(node: Node, readers: Sequence[Node], kernels: _Kernels) -> None:
    """Let some readers of a node, all of one kernel, read a copy, which is computed just before the first of them."""
    with node.graph.inserting_before(min(readers)):
        name = f"{node.name}_again"
        copied = node.graph.create_node(node.op, node.target, node.args, node.kwargs, name, node.type)
    # A value in memory of its own, by which passes tell copies from aliases.
    copied.meta = {**node.meta, "val": node.meta["val"].clone()}
    for reader in readers:
        reader.replace_input_with(node, copied)
    kernels.of[copied] = kernels.of[readers[0]]
    kernels.readers[copied] = list(readers)
    kernels.readers[node] = [reader for reader in kernels.readers[node] if reader not in readers]
    for source in kernels.sources(node):
        kernels.readers[source].append(copied)
