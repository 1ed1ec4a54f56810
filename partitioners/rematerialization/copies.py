"""Compute a cheap value in each kernel of the backward pass that reads it, where that moves fewer bytes.

Equal nodes of the joint graph are one node. Where kernels apart from one another read it, as those of two batch norms
that share a gradient do, a compiler that keeps it as one writes its value to memory, and reads it again. To compute it
again in each kernel, from what is in memory anyway, takes less: a kernel then reads that instead.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from torch.fx import GraphModule, Node

from aotkit.aot.effects import changes_inputs
from aotkit.aot.graph_modules import renew_code
from aotkit.aot.graphs import is_pointwise
from aotkit.aot.partition import is_random, is_tensor, storages
from aotkit.inspection import output_nodes
from aotkit.partitioners.rematerialization.fusion import fused_in, readers_of, viewed
from aotkit.partitioners.rematerialization.operators import is_barrier, is_free
from aotkit.partitioners.rematerialization.values import bytes_of


def compute_where_read(backward: GraphModule) -> None:
    """Copy nodes of a backward graph, in place. The copy of `sub` is `sub_again`."""
    nodes = [node for node in backward.graph.nodes if node.op != "output"]
    if any(changes_inputs(node) for node in nodes):
        return  # a copy might read what has changed since
    kernels = _kernels(nodes)
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


@dataclass(frozen=True)
class _Kernels:
    """What is fused in a backward graph.

    Attributes:
        free: nodes that move no data.
        readers: node -> those that read it, through views.
        of: fused node -> its kernel, by one node of that.
    """

    free: set[Node]
    readers: dict[Node, list[Node]]
    of: dict[Node, Node]


def _kernels(nodes: Sequence[Node]) -> _Kernels:
    memories = {node: storages(node) for node in nodes}
    free = {node for node in nodes if is_free(node, memories.__getitem__)}
    called = [node for node in nodes if node.op == "call_function"]
    barriers = {node for node in called if is_barrier(node, free)}
    readers = readers_of(nodes, free)
    return _Kernels(free, readers, fused_in(called, readers, barriers, free))


def _is_less(node: Node, others: Collection[Node | None], kernels: _Kernels) -> bool:
    """Whether to compute a value in other kernels, too, moves fewer bytes than to write it for them."""
    again = 0
    for source in {viewed(i, kernels.free) for i in node.all_input_nodes}:
        own = kernels.of.get(source)
        places = {kernels.of.get(reader) for reader in kernels.readers[source]} | {own}
        is_written = own is None or len(places) > 1
        again += bytes_of(source) * (sum(other not in places for other in others) + (not is_written))
    return again < bytes_of(node) * (1 + len(others))


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
    for source in {viewed(i, kernels.free) for i in node.all_input_nodes}:
        kernels.readers[source].append(copied)
