"""Why each saved value is saved, in words, and what recomputing the others takes: `aotkit.Graphs` shows both."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cache, cached_property, partial

from aotkit.aot.partition import flops
from aotkit.inspection import bytes_moved, packet_name, producer
from aotkit.partitioners.rematerialization.operators import is_cheap
from aotkit.partitioners.rematerialization.problem import Cost
from aotkit.partitioners.rematerialization.roofline import UNIT
from aotkit.partitioners.rematerialization.values import Values, why_once
from aotkit.text import bytes_name, flops_name, seconds_name

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
    again_of = cache(partial(_Again, values))  # several saved values are computed from the same nodes
    for i in there:
        if values.kept[i]:
            missing = [i, *_computed(values, values.inputs[i], known)]
            nodes = [again_of(j) for j in missing]
            seconds = None if times is None else sum(times[j] or 0 for j in missing) * UNIT
            values.nodes[i].meta["saved_because"] = _reason(values, i, nodes, seconds)
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


class _Again:
    """What it takes to compute a value again; found when it is asked for."""

    def __init__(self, values: Values, number: int) -> None:
        self._values, self._number = values, number
        self.node = values.nodes[number]

    @property
    def why_not(self) -> str | None:
        return None if self._values.repeatable[self._number] else why_once(self.node)

    @cached_property
    def expensive(self) -> str | None:
        """A word for the operator; None: it is cheap."""
        if is_cheap(self.node):
            return None
        name = packet_name(self.node)
        return "attention" if "attention" in name else PRODUCTS.get(name, name)

    @cached_property
    def flops(self) -> int:
        return flops(self.node)

    @cached_property
    def moved(self) -> int:
        """Bytes."""
        return 0 if self.node in self._values.free else bytes_moved(self.node) or 0


def _reason(values: Values, saved: int, missing: Sequence[_Again], seconds: float | None) -> str:
    """Why a value is saved, if to compute it again, `missing` would have to be, which would take some seconds."""
    node = producer(values.nodes[saved])
    if (why_not := why_once(node)) is not None:
        return why_not
    for other in missing:
        if other.why_not is not None:
            return f"computed from {other.node.name}: {other.why_not}"
    work = _work(missing)
    if seconds is not None:
        return f"the budget has room for it: {seconds_name(seconds)} to recompute, {work}"
    if not is_cheap(node):
        return f"expensive: {work}"
    return f"cheaper than recomputing it: {bytes_name(values.kept[saved])} against {work}"


def _work(missing: Sequence[_Again]) -> str:
    """`2 x matrix product, 3.2 GFLOP`: the expensive operators among some; if there are none, what they all move."""
    expensive = Counter(again.expensive for again in missing if again.expensive)
    if not expensive:
        return f"{bytes_name(sum(again.moved for again in missing))} moved"
    words = [word if count == 1 else f"{count} x {word}" for word, count in expensive.items()]
    total = sum(again.flops for again in missing)
    return ", ".join([*words, *([flops_name(total)] if total else [])])
