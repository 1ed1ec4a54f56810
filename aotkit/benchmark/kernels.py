"""An estimate of the time that a graph takes on a GPU whose compiler fuses everything that it can."""

from collections import defaultdict
from collections.abc import Hashable, Sequence, Set

import networkx as nx
from networkx.utils import UnionFind

from aotkit.benchmark.dataflow import Dataflow, Step
from aotkit.inspection import Memory
from aotkit.partitioners.rematerialization.devices import Device

Reads = dict[tuple[Hashable, Memory], int]  # as those of a step

# About what an A100 and an H200 reach in float32 by TensorFloat32: less than their data sheets say.
DEVICES = {"A100": Device(1.5e12, 120e12), "H200": Device(4.8e12, 400e12)}


def seconds(kernels: Sequence[Step], device: Device) -> float:
    """Each kernel takes as long as its bytes or its floating-point operations do, whichever is longer."""
    return sum(max(bytes_moved(k) / device.bandwidth, k.flops / device.flops) + device.launch for k in kernels)


def bytes_moved(kernel: Step) -> int:
    """What it reads from memory and writes there."""
    return sum(kernel.sources.values()) + sum(memory.nbytes for memory in kernel.writes)


def fuse(flow: Dataflow, *, again: bool = True) -> list[Step]:
    """The kernels of a graph, in an order in which they can run: their `writes` are only what must be in memory.

    Everything that feeds one another between two barriers (matrix products, convolutions, sorting, ...) is one kernel,
    reductions too. What can run earlier or later runs as late as possible, next to what reads it.

    Args:
        again: whether kernels compute again what others could write for them, where they read less then; as Inductor
            does, but not always.
    """
    groups = _groups(flow.steps)
    reads = [{key: nbytes for step in group for key, nbytes in step.reads.items()} for group in groups]
    kept = _kept(flow, groups, reads, again=again)
    kernels = []
    for group, read in zip(groups, reads, strict=True):
        made = [memory for step in group for memory in step.writes]
        own = set(made)
        read = {key: nbytes for key, nbytes in read.items() if key[1] not in own and kept.get(key[1], True)}
        writes = [memory for memory in made if kept[memory]]
        kernels.append(Step(read, writes, sum(step.flops for step in group), group[0].alone))
    position = {step: i for i, step in enumerate(flow.steps)}
    return _in_order(kernels, [position[group[-1]] for group in groups])


def _kept(
    flow: Dataflow, groups: Sequence[Sequence[Step]], reads: Sequence[Reads], *, again: bool
) -> dict[Memory, bool]:
    """For what steps make, whether it is written to memory: not what all kernels that need it compute `again`.

    What they read for that is added to their `reads`.
    """
    places = {step: i for i, group in enumerate(groups) for step in group}
    readers = _readers(flow.steps)
    returned = {memory for output in flow.outputs for memory in output}
    fused = {memory for group in groups if not group[0].alone for step in group for memory in step.writes} - returned
    kept = {}
    for i, group in enumerate(groups):
        made = [memory for step in group for memory in step.writes]
        others = {memory: {places[r] for r in readers[memory]} - {i} for memory in made}
        computed = {
            j: _again(group, reads[j], fused) if again and not groups[j][0].alone else {}
            for j in set().union(*others.values())
        }
        for memory in made:
            kept[memory] = memory not in fused or not all(memory in computed[j] for j in others[memory])
            for j in () if kept[memory] else others[memory]:
                reads[j].update(computed[j][memory])
    return kept


def _again(group: Sequence[Step], known: Reads, fused: Set[Memory]) -> dict[Memory, Reads]:
    """The results of a group that a kernel computes again, and what it reads for that besides what is known: less.

    Args:
        fused: what may not be in memory.
    """
    found: dict[Memory, Reads] = {}
    for step in group:
        if not step.pointwise:
            continue
        more: Reads = {}
        for key, nbytes in step.reads.items():
            more.update({} if key in known else found.get(key[1], {key: nbytes}))
        if not any(memory in fused for _, memory in more):
            found.update(dict.fromkeys(step.writes, more))
    return {memory: more for memory, more in found.items() if sum(more.values()) < memory.nbytes}


def _readers(steps: Sequence[Step]) -> dict[Memory, list[Step]]:
    readers = defaultdict(list)
    for step in steps:
        for memory in step.sources:
            readers[memory].append(step)
    return readers


def _makers(steps: Sequence[Step]) -> dict[Memory, Step]:
    return {memory: step for step in steps for memory in step.writes}


def _depths(steps: Sequence[Step]) -> dict[Step, int]:
    """How many barriers come before each step, itself included, on the longest way; as late as its readers allow."""
    makers, readers = _makers(steps), _readers(steps)
    depths: dict[Step, int] = {}
    for step in steps:
        depths[step] = max((depths[makers[m]] for m in step.sources if m in makers), default=0) + step.alone
    for step in reversed(steps):
        needed = [depths[r] - r.alone for memory in step.writes for r in readers[memory]]
        if needed:
            depths[step] = max(depths[step], min(needed))
    return depths


def _groups(steps: Sequence[Step]) -> list[list[Step]]:
    """Steps of equal depth that feed one another, each in the order of the graph; barriers are groups of one."""
    makers, depths = _makers(steps), _depths(steps)
    connected = UnionFind(steps)
    for step in steps:
        for memory in () if step.alone else step.sources:
            maker = makers.get(memory)
            if maker is not None and not maker.alone and depths[maker] == depths[step]:
                connected.union(maker, step)
    groups: dict[Step, list[Step]] = {}
    for step in steps:
        groups.setdefault(connected[step], []).append(step)
    return list(groups.values())


def _in_order(kernels: Sequence[Step], ends: Sequence[int]) -> list[Step]:
    """Such that each runs after what it reads is there; of those that can run, the one that ends first in the graph."""
    makers = {memory: i for i, kernel in enumerate(kernels) for memory in kernel.writes}
    order = nx.DiGraph()
    order.add_nodes_from(range(len(kernels)))
    order.add_edges_from((makers[m], i) for i, kernel in enumerate(kernels) for m in kernel.sources if m in makers)
    return [kernels[i] for i in nx.lexicographical_topological_sort(order, key=ends.__getitem__)]
