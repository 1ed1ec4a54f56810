"""Save the fewest bytes from which the backward pass can be computed without repeating expensive work. Exactly.

On a GPU, `partition` does that where it adds at most 1 % to the time of a step, as `rematerialization/costs.py`
estimates it, and else as much of it as adds no more: what a matrix product alone needs is written once more there.
`budget` saves as many bytes as it is allowed to, in the least time; `peak` never has more than so many in memory at
once, in forward and backward together.

Every value of the forward pass may be *saved*, or *recomputed* in the backward pass from values that are themselves
saved or recomputed. The cheapest such choice is a minimum cut; `rematerialization` finds it.

* Saving costs the bytes of the memory that is kept alive. Inputs, parameters and outputs are alive anyway and cost
  nothing, but for inputs that may change before the backward pass, as eager would not keep them: the core has the graph
  read copies of these, which cost their bytes. A view is free to recompute and never saved: its base is.
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

import logging
import re
import time
from collections.abc import Callable, Collection
from typing import Any

from torch.fx import GraphModule

from aotkit.errors import BudgetError, CompileError
from aotkit.interfaces import Partitioner
from aotkit.joint import Sides, classify, default_partition, extract_forward_backward, simplify
from aotkit.partitioners.rematerialization.blocks import solve
from aotkit.partitioners.rematerialization.copies import compute_where_read
from aotkit.partitioners.rematerialization.costs import fewest_bytes, in_time, tradeoff
from aotkit.partitioners.rematerialization.devices import Device, device_of, typical_gpu_of
from aotkit.partitioners.rematerialization.lifetimes import lifetimes
from aotkit.partitioners.rematerialization.order import lower_peak
from aotkit.partitioners.rematerialization.peak import fastest_below, paths_of, peak_of
from aotkit.partitioners.rematerialization.problem import Impossible
from aotkit.partitioners.rematerialization.reasons import leave_reasons
from aotkit.partitioners.rematerialization.tradeoff import (
    Choice,
    OverBudget,
    Tradeoff,
    fastest,
    fastest_within,
    smallest_within,
)
from aotkit.partitioners.rematerialization.values import Values, is_barrier, values_of
from aotkit.runtime import collecting_later
from aotkit.text import bytes_name

_log = logging.getLogger("aotkit")
Choose = Callable[[Values, Sides], Collection[int]]  # the numbers of the values to save
Limit = int | float  # bytes, or a fraction of what there would be without a limit
USED = 0.97  # of a budget; what leaves more unused is explained
SLOWER = 0.01  # of the time of a step: what recomputing may take in all
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "kB": 10**3, "MB": 10**6, "GB": 10**9}


def partition(
    joint: GraphModule, joint_inputs: Any, /, *, num_fwd_outputs: int, **kwargs: Any
) -> tuple[GraphModule, GraphModule]:
    """Split the joint graph into (forward, backward) at the cut of fewest saved bytes that takes hardly more time."""
    return _split(_choose, joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)


def _choose(values: Values, sides: Sides) -> Collection[int]:
    problem = fewest_bytes(values)
    chosen: Collection[int] = problem.resolve(solve(problem))[0]
    # Without a matrix product or the like it is a kernel or two, whose time is what they read.
    has_barriers = any(is_barrier(n, values.free) for n in values.memories if n.op == "call_function")
    if has_barriers and (device := typical_gpu_of(values)) is not None:
        costs = in_time(problem, values, sides, device)
        quickest = fastest(costs)
        most = quickest.time + int(SLOWER * (costs.anyway + quickest.time))
        if costs.choice(chosen).time > most:
            chosen = smallest_within(costs, most).saved
    leave_reasons(values, chosen)
    return chosen


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
    wanted = _parsed(limit)

    def choose(values: Values, sides: Sides) -> Collection[int]:
        costs = tradeoff(values, sides, device or device_of(values))
        chosen = find(wanted, values, sides, costs).saved
        leave_reasons(values, chosen, costs.time.recompute)
        return chosen

    def partition_within(joint: GraphModule, joint_inputs: Any, /, **kwargs: Any) -> tuple[GraphModule, GraphModule]:
        parts = _split(choose, joint, joint_inputs, **kwargs)
        for part in parts:
            part.meta["memory_limited"] = True
        return parts

    partition_within.__name__ = name
    return partition_within


def _parsed(limit: int | float | str) -> Limit:
    """What the user gave.

    Raises:
        ValueError: it is no limit.
    """
    if isinstance(limit, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", limit)
        if found and found[2] in UNITS:
            return int(float(found[1]) * UNITS[found[2]])
    elif (isinstance(limit, float) and 0 <= limit <= 1) or (
        isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0
    ):
        return limit
    raise ValueError(
        f"{limit!r} is no budget. Use bytes (an integer), bytes with a unit ('2GiB', '500MB'), or a fraction (a float "
        "from 0.0 to 1.0)."
    )


def _in_bytes(limit: Limit, whole: int) -> int:
    return limit if isinstance(limit, int) else int(limit * whole)


def _split(
    choose: Choose, joint: GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **kwargs: Any
) -> tuple[GraphModule, GraphModule]:
    """Split a joint graph where `choose` says."""
    with collecting_later():
        simplify(joint)
        sides = classify(joint, num_fwd_outputs)
        if not sides.backward:
            return default_partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)
        start = time.process_time()
        values = values_of(joint, sides)
        try:
            saved = [values.nodes[i] for i in sorted(choose(values, sides))]
        except Impossible as e:
            stuck = [values.nodes[i].name for i in e.values]
            raise CompileError(
                f"No partition exists: the backward graph needs {stuck}, which can be neither saved nor recomputed "
                "from what can. Use partition='default', or remove its tag of torch.utils.checkpoint."
            ) from None
        joint.meta["choice_seconds"] = time.process_time() - start
        forward, backward = extract_forward_backward(joint, saved, num_fwd_outputs=num_fwd_outputs)
        compute_where_read(backward)
        lower_peak(backward, sides)
        return forward, backward


def within(limit: Limit, values: Values, sides: Sides, costs: Tradeoff) -> Choice:
    """The fastest choice that saves no more than a limit."""
    most = _in_bytes(limit, fastest(costs).kept)
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
    most = _in_bytes(limit, peak_of(fastest(costs), costs, lives))
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
