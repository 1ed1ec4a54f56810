"""Save the fewest bytes from which the backward pass can be computed without repeating expensive work. Exactly.

On a GPU, `partition` does that where it adds at most 1 % to the time of a step, as `rematerialization/roofline.py`
estimates it, and else as much of it as adds no more: what a matrix product alone needs is written once more there.
`budget` saves as many bytes as it is allowed to, in the least time; `peak` never has more than so many in memory at
once, in forward and backward together.

Every value of the forward pass may be *saved*, or *recomputed* in the backward pass from values that are themselves
saved or recomputed. The cheapest such choice is a minimum cut; `rematerialization` finds it.

* Saving costs the bytes of the memory that is kept alive. Inputs, parameters and outputs are alive anyway and cost
  nothing. A view is free to recompute and never saved: its base is.
* Recomputing costs the bytes moved, counted so finely that all of it together weighs less than one saved byte: it
  decides between cuts of equal size, and makes the choice unique.
* Never recomputed: random draws, operators with side effects, readers of inputs that the function changes in place,
  values tagged to be saved by `torch.utils.checkpoint`; and everything that is not cheap, as bytes alone would
  recompute the whole forward pass from its inputs. Cheap are pointwise operators, casts, factories, reductions,
  normalisations and indexing. So matrix products, convolutions, attention, sorting, scattering, pooling and scans
  always run once. So do values much smaller than what is read to compute them again: the sum of each row; and than
  what they are broadcast into, where a fused kernel would compute them for each element: the key of a dropout.
* Values that the function recomputes with `torch.utils.checkpoint` are saved only if nothing else is possible.

The backward graph then computes cheap values in each kernel that reads them, where that moves fewer bytes
(`rematerialization/copies.py`), and is reordered where that lowers its peak of memory (`rematerialization/order.py`).
"""

import gc
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch.fx import GraphModule, Node

from aotkit.aot.environment import without_garbage_collection
from aotkit.aot.extraction import extract_forward_backward
from aotkit.aot.graphs import is_pointwise
from aotkit.aot.partition import Sides, classify, default_partition, is_symbol, simplify
from aotkit.errors import BudgetError, CompileError
from aotkit.inspection.nodes import bytes_name, producer
from aotkit.interfaces import Partitioner
from aotkit.partitioners.rematerialization.blocks import solve
from aotkit.partitioners.rematerialization.copies import compute_where_read
from aotkit.partitioners.rematerialization.devices import Device, device_of, typical_gpu_of
from aotkit.partitioners.rematerialization.fusion import readers_of
from aotkit.partitioners.rematerialization.lifetimes import lifetimes
from aotkit.partitioners.rematerialization.limits import Limit, parse_limit
from aotkit.partitioners.rematerialization.operators import is_cheap, is_pass
from aotkit.partitioners.rematerialization.order import lower_peak
from aotkit.partitioners.rematerialization.peak import fastest_below, paths_of, peak_of
from aotkit.partitioners.rematerialization.problem import Impossible, Problem
from aotkit.partitioners.rematerialization.reasons import leave_reasons
from aotkit.partitioners.rematerialization.roofline import tradeoff
from aotkit.partitioners.rematerialization.tradeoff import (
    Choice,
    OverBudget,
    Tradeoff,
    fastest,
    fastest_within,
    smallest_within,
)
from aotkit.partitioners.rematerialization.values import Values, values_of

_log = logging.getLogger("aotkit")
USED = 0.97  # of a budget; what leaves more unused is explained
SLOWER = 0.01  # of the time of a step: what recomputing may take in all
SMALL = 1 / 64  # of the memory of another value; as many of them as there are large ones take no more than 2 %


def partition(
    joint: GraphModule, joint_inputs: Any, /, *, num_fwd_outputs: int, **kwargs: Any
) -> tuple[GraphModule, GraphModule]:
    """Split the joint graph into (forward, backward) at the cut of fewest saved bytes that takes hardly more time."""
    return _split(_choose, joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)


def _choose(values: Values, sides: Sides) -> Collection[int]:
    problem = fewest_bytes(values)
    chosen: Collection[int] = problem.resolve(solve(problem))[0]
    # Without a matrix product or the like it is a kernel or two, whose time is what they read.
    has_barriers = any(not is_cheap(n) for n in values.memories if n.op == "call_function" and n not in values.free)
    if has_barriers and (device := typical_gpu_of(values)) is not None:
        costs = _in_time(problem, tradeoff(values, sides, device), values)
        quickest = fastest(costs)
        most = quickest.time + int(SLOWER * (costs.anyway + quickest.time))
        if costs.choice(chosen).time > most:
            chosen = smallest_within(costs, most).saved
    leave_reasons(values, chosen)
    return chosen


def _in_time(problem: Problem, costs: Tradeoff, values: Values) -> Tradeoff:
    """What the choices of a problem in bytes take in time.

    What the forward pass does not need is saved only if nothing else is possible.
    """
    save, kept, again = list(costs.time.save), list(costs.kept), list(costs.time.recompute)
    everything = 1 + costs.anyway + sum(price or 0 for price in (*save, *again))
    for i, price in enumerate(problem.save):
        if price is None:
            save[i] = None
        elif save[i] is None:
            save[i], kept[i] = everything, values.kept[i] or 0
        if problem.recompute[i] is None:
            again[i] = None
    return replace(costs, time=replace(costs.time, save=save, recompute=again), kept=kept)


Choose = Callable[[Values, Sides], Collection[int]]  # the numbers of the values to save


def budget(limit: int | float | str, device: Device | None = None) -> Partitioner:
    """A partitioner that saves at most `limit`, and computes again what takes the least time.

    Args:
        limit: bytes; or `"2GiB"`; or a fraction below or equal to 1.0 of what the fastest partition saves.
        device: how fast the device is; measured by default.

    Raises:
        ValueError: it is no such limit.
        BudgetError: from the partitioner: nothing saves so little.
    """
    return _limited(within, limit, device, f"nx_min_cut.budget({limit!r})")


def peak(limit: int | float | str, device: Device | None = None) -> Partitioner:
    """A partitioner that holds at most `limit` in memory at once, and computes again what takes the least time.

    Counted are inputs, parameters, outputs and gradients, saved and recomputed values, from the first step of forward
    to the last one of backward, as a compiler runs them that fuses what lies between matrix products and the like.

    Args:
        limit: bytes; or `"6GiB"`; or a fraction below or equal to 1.0 of the peak of the fastest partition.
        device: how fast the device is; measured by default.

    Raises:
        ValueError: it is no such limit.
        BudgetError: from the partitioner: no partition is known that holds so little.
    """
    return _limited(below, limit, device, f"nx_min_cut.peak({limit!r})")


def _limited(
    find: Callable[[Limit, Values, Sides, Tradeoff], Choice], limit: int | float | str, device: Device | None, name: str
) -> Partitioner:
    """The partitioner that saves what `find` chooses within a limit."""
    wanted = parse_limit(limit)

    def choose(values: Values, sides: Sides) -> Collection[int]:
        costs = tradeoff(values, sides, device or device_of(values))
        chosen = find(wanted, values, sides, costs).saved
        leave_reasons(values, chosen, costs.time.recompute)
        return chosen

    def partition_within(
        joint: GraphModule, joint_inputs: Any, /, *, num_fwd_outputs: int, **kwargs: Any
    ) -> tuple[GraphModule, GraphModule]:
        return _split(choose, joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)

    partition_within.__name__ = name
    return partition_within


def _split(
    choose: Choose,
    joint: GraphModule,
    joint_inputs: Any,
    *,
    num_fwd_outputs: int,
    **kwargs: Any,
) -> tuple[GraphModule, GraphModule]:
    """Split a joint graph where `choose` says."""
    with _no_garbage_collection():
        simplify(joint)
        sides = classify(joint, num_fwd_outputs)
        if not sides.backward:
            return default_partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)
        start = time.process_time()
        values = values_of(joint, sides)
        with _explained(values):
            saved = [values.nodes[i] for i in sorted(choose(values, sides))]
        joint.meta["choice_seconds"] = time.process_time() - start
        forward, backward = extract_forward_backward(joint, saved, num_fwd_outputs=num_fwd_outputs)
        compute_where_read(backward)
        lower_peak(backward, sides)
        return forward, backward


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """While a graph is cut. The collector would go through all of its nodes again and again, which doubles the time."""
    was_enabled = gc.isenabled()
    with without_garbage_collection():
        try:
            yield
        finally:
            if was_enabled and not gc.get_freeze_count():
                gc.freeze()  # what was made meanwhile counts as old now: the next collection does not go through it
                gc.unfreeze()


def within(limit: Limit, values: Values, sides: Sides, costs: Tradeoff) -> Choice:
    """The fastest choice that saves no more than a limit."""
    most = limit.of(fastest(costs).kept)
    try:
        choice = fastest_within(costs, most)
    except OverBudget as e:
        raise BudgetError(
            f"No partition saves so little: the smallest possible budget is {e.least} bytes ({bytes_name(e.least)}).",
            e.least,
        ) from None
    _log.info(
        "nx_min_cut saves %s of %s; no partition within that is faster by more than %.2f %%, by estimated time.%s",
        bytes_name(choice.kept), bytes_name(most), 100 * choice.gap, _why_not_more(choice, most, values),
    )  # fmt: skip
    return choice


def _why_not_more(choice: Choice, most: int, values: Values) -> str:
    """What is too large to use the rest of a budget, if that is more than a few percent."""
    if choice.indivisible is None or choice.kept >= USED * most:
        return ""
    return (
        f" The smallest value that is worth saving besides, {values.nodes[choice.indivisible].name}, has "
        f"{bytes_name(values.kept[choice.indivisible])}, more than the rest."
    )


def below(limit: Limit, values: Values, sides: Sides, costs: Tradeoff) -> Choice:
    """The fastest choice found whose peak is within a limit."""
    lives = lifetimes(values, sides)
    most = limit.of(peak_of(fastest(costs), costs, lives))
    try:
        choice, highest = fastest_below(paths_of(values, costs, lives), costs, lives, most)
    except OverBudget as e:
        raise BudgetError(
            f"A peak of {most} bytes ({bytes_name(most)}) was asked for. The smallest one that was found is {e.least} "
            f"bytes ({bytes_name(e.least)}), of which inputs and parameters take {bytes_name(lives.held)}.",
            e.least,
        ) from None
    _log.info(
        "nx_min_cut holds at most %s of %s at once, and saves %s; no partition within that, of those that it can put "
        "together, is faster by more than %.2f %%, by estimated time.",
        bytes_name(highest), bytes_name(most), bytes_name(choice.kept), 100 * choice.gap,
    )  # fmt: skip
    return choice


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


@contextmanager
def _explained(values: Values) -> Iterator[None]:
    """Turn what the solvers raise where there is no choice at all into an error that names nodes."""
    try:
        yield
    except Impossible as e:
        stuck = [values.nodes[i].name for i in e.values]
        raise CompileError(
            f"No partition exists: the backward graph needs {stuck}, which can be neither saved nor recomputed from "
            "what can. Use partition='default', or remove its tag of torch.utils.checkpoint."
        ) from None
