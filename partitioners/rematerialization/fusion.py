"""How a compiler that fuses would make kernels of a joint graph, as far as it is known before anything is chosen.

*Barriers* (matrix products, convolutions, attention, sorting and the like) are kernels of their own. A node's *depth*
is how many barriers come before it, on the longest way; nodes of equal depth that feed one another are one kernel.
Views are looked through: their readers read what they view.
"""

from collections.abc import Collection, Mapping, Sequence

from networkx.utils import UnionFind
from torch.fx import Node

from aotkit.joint import Sides
from aotkit.partitioners.rematerialization.values import Values, is_barrier

NOWHERE = -1


class Fusion:
    """The kernels of the forward pass, and of the backward pass as it is if everything that it reads is saved.

    Args:
        once: values of the forward pass that are never recomputed.

    Attributes:
        free: nodes that move no data.
        barriers: nodes that are kernels of their own.
        readers: node -> those that read it, through views.
        forward: node of the forward pass -> its depth there.
        backward: node of the backward pass -> its depth there.
        kernels: node of the backward pass, no barrier -> the kernel that it is in.
        stages: value -> the depth at which it would be recomputed for those that need it last. That is where its own
            gradient is computed; what needs it earlier, as later layers do that are recomputed, finds it far away.
            Whoever is never recomputed needs nothing.
    """

    def __init__(self, values: Values, sides: Sides, once: Collection[Node]) -> None:
        nodes, self.free = values.nodes, values.free
        late = [node for node in nodes[0].graph.nodes if node in sides.backward and node.op != "output"]
        self.barriers = {node for node in (*nodes, *late) if is_barrier(node, self.free)}
        self.readers = readers_of([*nodes, *late], self.free)
        self.forward = depths_of([node for node in nodes if node in sides.forward], self.barriers, self.free)
        self.backward = depths_of(late, self.barriers, self.free)
        self.kernels = kernels_of(late, self.readers, self.barriers, self.free)
        self.stages: dict[Node, int] = {}
        for node in reversed(nodes):
            readers = self.readers[node]
            wanted = [self.backward[r] - (r in self.barriers) for r in readers if r in self.backward]
            again = [r for r in readers if r in self.stages and r not in self.barriers and r not in once]
            self.stages[node] = max([*wanted, *(self.stages[r] for r in again)], default=NOWHERE)


def viewed(node: Node, free: Collection[Node]) -> Node:
    """What a node is a view or a part of; the node itself if of nothing."""
    while node in free and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def readers_of(nodes: Sequence[Node], free: Collection[Node]) -> dict[Node, list[Node]]:
    """Node -> those that read it, through views. Nodes are in graph order, and what reads them is among them."""
    readers: dict[Node, list[Node]] = {}
    for node in reversed(nodes):
        users = (readers[user] if user in free else [user] for user in node.users if user.op != "output")
        readers[node] = list(dict.fromkeys(reader for found in users for reader in found))
    return readers


def depths_of(nodes: Sequence[Node], barriers: Collection[Node], free: Collection[Node]) -> dict[Node, int]:
    """How many barriers come before each node, itself included; as late as its readers allow.

    What only returns a part of it, as the gradient of a weight is one, reads nothing.
    """
    depths: dict[Node, int] = {}
    for node in nodes:
        before = max((depths[i] for i in node.all_input_nodes if i in depths), default=0)
        depths[node] = before + (node in barriers)
    reads: set[Node] = set()
    for node in reversed(nodes):
        allowed = [depths[user] - (user in barriers) for user in node.users if user in reads]
        depths[node] = max(depths[node], min(allowed, default=0))
        if allowed or node not in free:
            reads.add(node)
    return depths


def kernels_of(
    nodes: Sequence[Node], readers: Mapping[Node, Sequence[Node]], barriers: Collection[Node], free: Collection[Node]
) -> dict[Node, Node]:
    """Fused node -> its kernel, by one node of that: those of equal depth that feed one another."""
    depths = depths_of(nodes, barriers, free)
    fused = [node for node in nodes if node not in barriers and node not in free]
    kernels = UnionFind(fused)
    for node in fused:
        for reader in readers[node]:
            if reader in kernels.parents and depths[reader] == depths[node]:
                kernels.union(node, reader)
    return {node: kernels[node] for node in fused}
