"""Why each saved value is saved, in words, and what recomputing the others takes: `aotkit.Graphs` shows both."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from torch.fx import Node

from aotkit.aot.partition import flops
from aotkit.inspection.costs import bytes_moved
from aotkit.inspection.nodes import bytes_name, flops_name, packet_name, producer, seconds_name
from aotkit.partitioners.rematerialization.operators import is_cheap, is_free
from aotkit.partitioners.rematerialization.problem import Cost
from aotkit.partitioners.rematerialization.roofline import UNIT
from aotkit.partitioners.rematerialization.values import Values, why_once

PRODUCTS = dict.fromkeys(("mm", "addmm", "bmm", "baddbmm"), "matrix product")


def leave_reasons(values: Values, chosen: Collection[int], times: Sequence[Cost] | None = None) -> None:
    """Write `saved_because` on the nodes that are saved, and `recompute_seconds` on those that are recomputed.

    What is alive anyway, as inputs and outputs are, has no reason: nothing is kept for it.

    Args:
        times: that recomputing each value takes, without its inputs, in `roofline.UNIT`, if the choice was one of
            time within a budget; None: expensive work never runs again, and bytes alone count.
    """
    there = {*chosen, *(i for i, kept in enumerate(values.kept) if kept == 0)}
    again = _computed(values, values.needed, there)
    known = there.union(again)
    for i in there:
        if values.kept[i]:
            missing = [i, *_computed(values, values.inputs[i], known)]
            values.nodes[i].meta["saved_because"] = _reason(values, i, missing, times)
    if times is not None:
        for i in again:
            values.nodes[i].meta["recompute_seconds"] = (times[i] or 0) * UNIT


def _computed(values: Values, start: Iterable[int], there: Collection[int]) -> list[int]:
    """What is computed to have some values, from those that are there."""
    found: dict[int, None] = {}
    queue = list(start)
    while queue:
        i = queue.pop()
        if i not in there and i not in found:
            found[i] = None
            queue += values.inputs[i]
    return list(found)


def _reason(values: Values, saved: int, missing: Sequence[int], times: Sequence[Cost] | None) -> str:
    """Why a value is saved, if to compute it again, `missing` would have to be."""
    node = values.nodes[saved]
    if (once := why_once(producer(node))) is not None:
        return once
    nodes = [values.nodes[i] for i in missing]
    for other in nodes:
        if (once := why_once(other)) is not None:
            return f"computed from {other.name}: {once}"
    work = _work(nodes)
    if times is not None:
        seconds = sum(times[i] or 0 for i in missing) * UNIT
        return f"the budget has room for it: {seconds_name(seconds)} to recompute, {work}"
    if not is_cheap(producer(node)):
        return f"expensive: {work}"
    return f"cheaper than recomputing it: {bytes_name(values.kept[saved])} against {work}"


def _work(nodes: Sequence[Node]) -> str:
    """`2 matrix product, 3.2 GFLOP`: the expensive operators among some; if there are none, what they all move."""
    expensive = Counter(_word(node) for node in nodes if not is_cheap(node))
    if not expensive:
        return f"{bytes_name(sum(bytes_moved(node) or 0 for node in nodes if not is_free(node)))} moved"
    words = [word if count == 1 else f"{count} x {word}" for word, count in expensive.items()]
    total = sum(map(flops, nodes))
    return ", ".join([*words, *([flops_name(total)] if total else [])])


def _word(node: Node) -> str:
    name = packet_name(node)
    return "attention" if "attention" in name else PRODUCTS.get(name, name)
