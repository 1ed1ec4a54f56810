"""Why each saved value is saved, in words, and what recomputing the others takes: `aotkit.Graphs` shows both."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cache, partial
from typing import NamedTuple

from aotkit.inspection import bytes_moved
from aotkit.partitioners.rematerialization.costs import UNIT
from aotkit.partitioners.rematerialization.problem import Cost, computed
from aotkit.partitioners.rematerialization.values import Values, is_cheap, why_once
from aotkit.passes import flops, packet_name, producer
from aotkit.text import bytes_name, flops_name, seconds_name

PRODUCTS = dict.fromkeys(("mm", "addmm", "bmm", "baddbmm"), "matrix product")


def leave_reasons(values: Values, chosen: Collection[int], times: Sequence[Cost] | None = None) -> None:
    """Write `saved_because` on the nodes that are saved, and `recompute_seconds` on those that are recomputed.

    What is alive anyway, as inputs and outputs are, has no reason: nothing is kept for it.

    Args:
        times: that recomputing each value takes, without its inputs, in `costs.UNIT`, if the choice was one of
            time within a budget; None: expensive work never runs again, and bytes alone count.
    """
    there = {*chosen, *(i for i, kept in enumerate(values.kept) if kept == 0)}
    again = computed(values.inputs.__getitem__, values.needed, there)
    known = there.union(again)
    work_of = cache(partial(_work_of, values))  # several saved values are computed from the same nodes
    for i in there:
        if values.kept[i]:
            missing = [i, *computed(values.inputs.__getitem__, values.inputs[i], known)]
            seconds = None if times is None else sum(times[j] or 0 for j in missing) * UNIT
            values.nodes[i].meta["saved_because"] = _reason(values, missing, map(work_of, missing), seconds)
    if times is not None:
        for i in again:
            values.nodes[i].meta["recompute_seconds"] = (times[i] or 0) * UNIT


def _reason(values: Values, missing: Sequence[int], work: Iterable["_Work"], seconds: float | None) -> str:
    """Why the first of some values is saved; to compute it again, all of them would have to be, in some seconds."""
    saved = missing[0]
    node = producer(values.nodes[saved])
    if (why_not := why_once(node)) is not None:
        return why_not
    for i in missing:
        if not values.repeatable[i]:
            return f"computed from {values.nodes[i].name}: {why_once(values.nodes[i])}"
    words = _words(list(work))
    if seconds is not None:
        return f"the budget has room for it: {seconds_name(seconds)} to recompute, {words}"
    if not is_cheap(node):
        return f"expensive: {words}"
    return f"cheaper than recomputing it: {bytes_name(values.kept[saved])} against {words}"


class _Work(NamedTuple):
    """What it takes to compute a value again: an expensive operator, in a word, with its FLOPs; or bytes moved."""

    expensive: str | None
    flops: int
    nbytes: int


def _work_of(values: Values, number: int) -> _Work:
    node = values.nodes[number]
    if is_cheap(node):
        return _Work(None, 0, 0 if node in values.free else bytes_moved(node) or 0)
    name = packet_name(node)
    return _Work("attention" if "attention" in name else PRODUCTS.get(name, name), flops(node), 0)


def _words(work: Sequence[_Work]) -> str:
    """`2 x matrix product, 3.2 GFLOP`: the expensive operators among some; if there are none, what they all move."""
    expensive = Counter(some.expensive for some in work if some.expensive)
    if not expensive:
        return f"{bytes_name(sum(some.nbytes for some in work))} moved"
    words = [word if count == 1 else f"{count} x {word}" for word, count in expensive.items()]
    total = sum(some.flops for some in work)
    return ", ".join([*words, *([flops_name(total)] if total else [])])
