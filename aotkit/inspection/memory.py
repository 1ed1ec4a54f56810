"""Which memory the nodes of a graph lie in, and how much is alive at a time."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from torch.fx import GraphModule, Node

from aotkit.passes import storages

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


def bytes_alive(spans: Iterable[Span], steps: int) -> list[int]:
    """For each step, the bytes of all spans that it lies in."""
    changes = [0] * (steps + 1)
    for first, last, nbytes in spans:
        changes[first] += nbytes
        changes[last + 1] -= nbytes
    return list(accumulate(changes[:-1]))
