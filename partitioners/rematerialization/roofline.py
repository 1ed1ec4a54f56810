"""What saving and recomputing take in time: memory traffic and arithmetic, as far as fusion does not hide them.

What is computed within a fused kernel costs nothing to speak of; what has to be in memory is written once, and read by
each kernel that needs it.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from torch.fx import Node

from aotkit.aot.graphs import is_pointwise
from aotkit.aot.partition import Sides, flops
from aotkit.inspection import producer
from aotkit.partitioners.rematerialization.devices import Device
from aotkit.partitioners.rematerialization.fusion import Fusion, fusion_of, viewed
from aotkit.partitioners.rematerialization.operators import is_pass
from aotkit.partitioners.rematerialization.problem import Problem
from aotkit.partitioners.rematerialization.tradeoff import Tradeoff
from aotkit.partitioners.rematerialization.values import Values

UNIT = 1e-12  # seconds
ARITHMETIC = 1e-3  # of a fused operator, as a share of the time to write its result
# The same of what that is broadcast into. Its traffic hides that, but to read a single number, such as the key of a
# dropout, takes less.
BROADCAST = 1e-6
READ_INPUT = 0.95  # of a read, so that what takes as long to save as to recompute from an input is recomputed


def tradeoff(values: Values, sides: Sides, device: Device, once: Collection[Node] = ()) -> Tradeoff:
    """Time against bytes, where no value of `once` is recomputed. A value costs to save

    * a write, if the forward pass would not have it in memory anyway, and
    * a read for each kernel of the backward pass that it is fused into. Barriers read what is recomputed, too.

    And to recompute: a barrier runs again, and each such kernel reads its result; a reduction reads its inputs once
    more; the rest is fused, but

    * written if barriers read it, or kernels elsewhere than where it is recomputed, which read it then; and
    * it reads what is not there: its inputs whose own gradients are computed elsewhere, which is why a residual stream
      is saved at each layer, rather than computed again from the outputs of all the layers before; or what these are
      computed from, if that is less: one result of a convolution instead of its normalised values in a wider type; and
      inputs of the function, such as an embedding of positions, that nothing else reads there.

    What the user asked to recompute is saved only if nothing else is possible.
    """
    drawn = {node for node, is_repeatable in zip(values.nodes, values.repeatable, strict=True) if not is_repeatable}
    fusion = fusion_of(values, sides, drawn.union(once))
    seconds = {node: values.nbytes(node) / device.bandwidth for node in fusion.readers}
    work = {node: _work(node, fusion, seconds, device) for node in fusion.readers}
    everything = int(sum(work[node] for node in values.nodes) / UNIT) + 1 + sum(kept or 0 for kept in values.kept)
    constants = {node for node, is_constant in zip(values.nodes, values.constant, strict=True) if is_constant}
    anyway = _reads_of_what_is_alive(values, fusion, seconds)
    far = _reads_of_what_is_far(values, fusion, seconds, constants)
    save: list[int | None] = []
    again: list[int | None] = []
    for i, node in enumerate(values.nodes):
        if values.kept[i] == 0:
            save.append(0)
        elif values.kept[i] is None or not values.in_forward[i]:
            save.append(None)
        else:
            passes = (not _is_in_memory(node, fusion)) + _passes_if_saved(node, fusion)
            save.append(1 + int(passes * seconds[node] / UNIT) + (everything if values.asked_for[i] else 0))
        if not values.repeatable[i]:
            again.append(None)
        elif node in fusion.free or node in constants or not values.in_forward[i]:
            again.append(0)
        else:
            passes = _passes_if_recomputed(node, fusion)
            again.append(int((work[node] + passes * seconds[node] + far[node] + anyway[node]) / UNIT))
    kept = [k if k and s else 0 for k, s in zip(values.kept, save, strict=True)]
    return Tradeoff(Problem(values.inputs, save, again, values.needed), kept, int(sum(work.values()) / UNIT))


def in_time(problem: Problem, costs: Tradeoff, values: Values) -> Tradeoff:
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


def _is_in_memory(node: Node, fusion: Fusion) -> bool:
    """Whether the forward pass writes a value in any case, as a kernel other than its own reads it."""
    if producer(node) in fusion.barriers:
        return True
    readers = [reader for reader in fusion.readers[node] if reader in fusion.forward]
    return any(r in fusion.barriers or fusion.forward[r] != fusion.forward[node] for r in readers)


def _passes_if_saved(node: Node, fusion: Fusion) -> int:
    """How often the backward pass reads a value because it is saved."""
    late = [reader for reader in fusion.readers[node] if reader in fusion.backward]
    return len({fusion.kernels[r] for r in late if r not in fusion.barriers}) or not late


def _passes_if_recomputed(node: Node, fusion: Fusion) -> int:
    """How often the backward pass writes or reads a value because it is recomputed."""
    late = [reader for reader in fusion.readers[node] if reader in fusion.backward]
    fused = [reader for reader in late if reader not in fusion.barriers]
    if node in fusion.barriers:
        return len({fusion.kernels[reader] for reader in fused})
    elsewhere = {fusion.backward[reader] for reader in fused} - {fusion.stages[node]}
    return len(elsewhere) + (len(fused) < len(late) or bool(elsewhere))


def _reads_of_what_is_far(
    values: Values, fusion: Fusion, seconds: Mapping[Node, float], constants: Collection[Node]
) -> dict[Node, float]:
    """The seconds in which a fused node that is recomputed reads what is not there for its own gradient.

    It reads what these sources are computed from instead, where that is less, and each of it once; what it is computed
    from in the same kernel may have read it already.
    """
    origins: dict[Node, frozenset[Node]] = {node: frozenset((node,)) for node in seconds}
    found = dict.fromkeys(values.nodes, 0.0)
    read: dict[Node, frozenset[Node]] = dict.fromkeys(values.nodes, frozenset())
    for node in values.nodes:
        if node in fusion.free or node in fusion.barriers:
            continue
        sources = {viewed(i, fusion.free) for i in node.all_input_nodes}.difference(constants)
        if is_pointwise(node):
            further = _union(origins[source] for source in sources)
            if sum(seconds[origin] for origin in further) < seconds[node]:
                origins[node] = further
        near = {source for source in sources if fusion.stages[source] == fusion.stages[node]}
        before = _union(read[source] for source in near)
        far = _union(origins[source] for source in sources - near) - before
        found[node] = sum(seconds[origin] for origin in far)
        read[node] = before | far
    return found


def _union(sets: Iterable[frozenset[Node]]) -> frozenset[Node]:
    return frozenset[Node]().union(*sets)


def _reads_of_what_is_alive(values: Values, fusion: Fusion, seconds: Mapping[Node, float]) -> dict[Node, float]:
    """The seconds in which a fused node that is recomputed reads what nothing has to be kept for, as inputs.

    A kernel reads it once, which is counted for the first node that may be recomputed in it, if no gradient reads it;
    and of a table only as much as is found there.
    """
    alive = {node for node, kept in zip(values.nodes, values.kept, strict=True) if kept == 0}
    found = dict.fromkeys(values.nodes, 0.0)
    read = {
        (node, fusion.backward[reader])
        for node in alive
        for reader in fusion.readers[node]
        if reader in fusion.backward and reader not in fusion.barriers
    }
    for node in values.nodes:
        if node in fusion.free or node in fusion.barriers:
            continue
        for source in {viewed(i, fusion.free) for i in node.all_input_nodes} & alive:
            if (source, fusion.stages[node]) not in read:
                read.add((source, fusion.stages[node]))
                if not is_pass(node):  # whose work that is
                    found[node] += READ_INPUT * min(seconds[source], seconds[node])
    return found


def _work(node: Node, fusion: Fusion, seconds: Mapping[Node, float], device: Device) -> float:
    """The seconds that a node takes to run again, in a kernel of its own or fused."""
    if node in fusion.free or node.op != "call_function":
        return 0.0
    read = sum(seconds[i] for i in node.all_input_nodes)
    if node in fusion.barriers:
        return max(flops(node) / device.flops, read + seconds[node]) + device.launch
    broadcast = max((seconds[reader] for reader in fusion.readers[node] if is_pointwise(reader)), default=0.0)
    return (read if is_pass(node) else 0.0) + ARITHMETIC * seconds[node] + BROADCAST * broadcast
