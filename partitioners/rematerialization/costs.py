"""What saving and recomputing take: in bytes, where nothing expensive runs twice, or in time, by a roofline.

Time is memory traffic and arithmetic, as far as fusion does not hide them. What is computed within a fused kernel costs
nothing to speak of; what has to be in memory is written once, and read by each kernel that needs it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import compress

from torch.fx import Node

from aotkit.joint import Sides
from aotkit.partitioners.rematerialization.devices import Device
from aotkit.partitioners.rematerialization.fusion import Fusion, readers_of, viewed
from aotkit.partitioners.rematerialization.problem import Cost, Problem
from aotkit.partitioners.rematerialization.tradeoff import Tradeoff
from aotkit.partitioners.rematerialization.values import Values, is_cheap, is_pass
from aotkit.passes import flops, is_pointwise, is_symbol, producer

SMALL = 1 / 64  # of the memory of another value; as many of them as there are large ones take no more than 2 %
UNIT = 1e-12  # seconds
ARITHMETIC = 1e-3  # of a fused operator, as a share of the time to write its result
# The same of what that is broadcast into. Its traffic hides that, but to read a single number, such as the key of a
# dropout, takes less.
BROADCAST = 1e-6
READ_INPUT = 0.95  # of a read, so that what takes as long to save as to recompute from an input is recomputed


def fewest_bytes(values: Values) -> Problem:
    """Bytes first, work second; nothing expensive runs twice."""
    repeated_late = _runs_expensive_work_late(values)
    readers = readers_of(list(values.nodes[0].graph.nodes), values.free)
    work: list[Cost] = []
    for i, node in enumerate(values.nodes):
        is_small = _is_small(node, values, values.kept[i], readers[node])
        is_little = values.constant[i] or values.asked_for[i] or (is_cheap(node) and not is_small)
        if not values.repeatable[i]:
            work.append(None)
        elif not values.in_forward[i]:
            work.append(0)  # what the forward pass does not need itself is no work repeated, wherever it runs
        else:
            work.append(_bytes_moved(node, values) if is_little else None)
    # One byte outweighs all the work, and what the user asked to recompute outweighs all the memory.
    byte = 1 + len(work) + sum(w or 0 for w in work)
    everything = 1 + sum(map(values.nbytes, values.nodes))
    save: list[Cost] = []
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
    after_expensive: list[bool] = []
    for i, node in enumerate(values.nodes):
        is_late = not values.in_forward[i]
        after_expensive.append(is_late and any(expensive[j] or after_expensive[j] for j in values.inputs[i]))
        expensive.append(is_late and not is_cheap(node) and not values.constant[i])
    return after_expensive


def _bytes_moved(node: Node, values: Values) -> int:
    """The bytes that recomputing a node reads and writes."""
    return 0 if node in values.free else sum(map(values.nbytes, (node, *node.all_input_nodes)))


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
    repeatable, constants = (set(compress(values.nodes, flags)) for flags in (values.repeatable, values.constant))
    fusion = Fusion(values, sides, {*values.nodes} - repeatable | {*once})
    seconds = {node: values.nbytes(node) / device.bandwidth for node in fusion.readers}
    work = {node: _work(node, fusion, seconds, device) for node in fusion.readers}
    everything = int(sum(work[node] for node in values.nodes) / UNIT) + 1 + sum(kept or 0 for kept in values.kept)
    anyway = _reads_of_what_is_alive(values, fusion, seconds)
    far = _reads_of_what_is_far(values, fusion, seconds, constants)
    save: list[Cost] = []
    again: list[Cost] = []
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


def in_time(problem: Problem, values: Values, sides: Sides, device: Device) -> Tradeoff:
    """What the choices of a problem in bytes take in time.

    What the forward pass does not need is saved only if nothing else is possible.
    """
    once = {node for node, again in zip(values.nodes, problem.recompute, strict=True) if again is None}
    costs = tradeoff(values, sides, device, once)
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
