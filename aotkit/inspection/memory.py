"""Which memory the nodes of a graph lie in."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from torch.fx import GraphModule, Node

from aotkit.aot.partition import storages


@dataclass(eq=False)
class Memory:
    """One storage while it is alive, and its size in bytes. What is computed twice is in two of them."""

    nbytes: int


def memories(gm: GraphModule, given: Sequence[Sequence[Memory]] = ()) -> dict[Node, Mapping[Hashable, Memory]]:
    """The memory of each node's tensors, by their fake storages: a view's is that of what it views.

    Args:
        given: the memory of the first placeholders that are tensors.
    """
    found: dict[Node, Mapping[Hashable, Memory]] = {}
    shared: dict[Hashable, Memory] = {}  # placeholders may be views of one another
    rest = iter(given)
    for node in gm.graph.nodes:
        own = storages(node)
        if node.op == "placeholder":
            found[node] = _placed(own, next(rest, ()) if own else (), shared)
        else:
            seen = {key: memory for i in node.all_input_nodes for key, memory in found[i].items()}
            found[node] = {key: seen.get(key) or Memory(size) for key, size in own.items()}
    return found


def _placed(
    own: Mapping[Hashable, int], given: Sequence[Memory], shared: dict[Hashable, Memory]
) -> dict[Hashable, Memory]:
    if given:
        return dict(zip(own, given, strict=True))
    return {key: shared.setdefault(key, Memory(size)) for key, size in own.items()}
