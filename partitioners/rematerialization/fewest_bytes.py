"""Which values to save so that the fewest bytes are kept, and nothing expensive runs twice: as a problem to solve."""

from collections.abc import Sequence

from torch.fx import Node

from aotkit.aot.graphs import is_pointwise, is_symbol
from aotkit.inspection import producer
from aotkit.partitioners.rematerialization.fusion import readers_of
from aotkit.partitioners.rematerialization.operators import is_cheap, is_pass
from aotkit.partitioners.rematerialization.problem import Problem
from aotkit.partitioners.rematerialization.values import Values

SMALL = 1 / 64  # of the memory of another value; as many of them as there are large ones take no more than 2 %


def fewest_bytes(values: Values) -> Problem:
    """Bytes first, work second; nothing expensive runs twice."""
    repeated_late = _runs_expensive_work_late(values)
    graph = list(values.nodes[0].graph.nodes)
    readers = readers_of(graph, values.free)
    work: list[int | None] = []
    for i, node in enumerate(values.nodes):
        is_small = _is_small(node, values, values.kept[i], readers[node])
        is_little = values.constant[i] or values.asked_for[i] or (is_cheap(node) and not is_small)
        if values.repeatable[i] and (is_little or not values.in_forward[i]):
            # What the forward pass does not need itself is no work repeated, wherever it runs.
            work.append(_bytes_moved(node, values) if values.in_forward[i] else 0)
        else:
            work.append(None)
    # One byte outweighs all the work, and what the user asked to recompute outweighs all the memory.
    byte = 1 + len(work) + sum(w or 0 for w in work)
    everything = 1 + sum(map(values.nbytes, values.nodes))
    save: list[int | None] = []
    for i, (node, kept) in enumerate(zip(values.nodes, values.kept, strict=True)):
        if kept is None or repeated_late[i]:
            save.append(None)
        else:
            asked = everything if kept and values.asked_for[i] else 0
            save.append((kept + asked) * byte + is_symbol(node))
    return Problem(values.inputs, save, work, values.needed)


def _is_small(node: Node, values: Values, kept: int | None, readers: Sequence[Node]) -> bool:
    """Whether a value can be saved, and is much smaller than what recomputing it reads, or repeats it for."""
    if not kept:
        return False
    computed = producer(node)  # all of what this may be an item of
    read = _bytes_moved(computed, values) if is_pass(computed) else 0
    broadcast = max((values.nbytes(reader) for reader in readers if is_pointwise(reader)), default=0)
    return values.nbytes(computed) <= SMALL * read or kept <= SMALL * broadcast


def _runs_expensive_work_late(values: Values) -> list[bool]:
    """Of values that the forward pass does not need: whether saving one would have it run what may also run later."""
    expensive: list[bool] = []
    below: list[bool] = []
    for i, node in enumerate(values.nodes):
        before = not values.in_forward[i] and any(expensive[j] or below[j] for j in values.inputs[i])
        below.append(before)
        expensive.append(not values.in_forward[i] and not is_cheap(node) and not values.constant[i])
    return below


def _bytes_moved(node: Node, values: Values) -> int:
    """The bytes that recomputing a node reads and writes."""
    return 0 if node in values.free else sum(map(values.nbytes, (node, *node.all_input_nodes)))
