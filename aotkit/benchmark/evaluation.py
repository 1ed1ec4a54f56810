"""What a partition costs in memory and time, judged by its two graphs alone: no partitioner computes with this."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule, Node

from aotkit.benchmark.dataflow import Step, dataflow
from aotkit.benchmark.kernels import DEVICES, fuse, seconds
from aotkit.inspection import Memory
from aotkit.partitioners.rematerialization.devices import Device
from aotkit.passes import flops, is_random


@dataclass(frozen=True)
class Evaluation:
    """One partition. Inputs, parameters and constants count nowhere as memory: they are alive anyway.

    A peak is the most that is alive at a time: intermediate and saved values, tangents until they have been used,
    outputs and gradients to the end. Of fused kernels, as Inductor's, what lives inside one does not count, and results
    take the places of what is read for the last time.
    """

    saved_bytes: int  # distinct storage that lives from forward to backward, and is no output of the function
    peak_bytes: int  # if the graphs run operator by operator
    fused_peak_bytes: int  # if fused kernels run
    kernels: int  # fused ones of the two graphs
    seconds: Mapping[str, float]  # name of a device -> estimated time of forward and backward
    redrawn: int  # random operators in backward that forward runs, too, with other numbers: gradients are wrong
    repeated: int  # the same for matrix products, convolutions and attention
    repeated_flops: int  # what those take


def evaluate(
    forward: GraphModule, backward: GraphModule, num_outputs: int, devices: Mapping[str, Device] = DEVICES
) -> Evaluation:
    """Judge a partition by the nodes of its graphs and the fake tensors on them, in the order of the nodes.

    Args:
        num_outputs: how many outputs of `forward` are not saved values.
    """
    fw = dataflow(forward)
    saved = fw.outputs[num_outputs:]
    bw = dataflow(backward, [memory for memory in saved if memory])
    outputs = _flat(fw.outputs[:num_outputs])
    elsewhere = {*_flat(fw.inputs), *fw.constants, *outputs}
    rest: Any = {
        "saved": _flat(saved),
        "tangents": dict.fromkeys(_flat(bw.inputs[sum(map(bool, saved)) :])),
        "kept": [*outputs, *_flat(bw.outputs)],
    }
    kernels = fuse(fw), fuse(bw)
    again = _again(forward, backward)
    repeated = [work for node in again if (work := flops(node))]
    return Evaluation(
        saved_bytes=sum(memory.nbytes for memory in set(_flat(saved)) - elsewhere),
        peak_bytes=peak_bytes(fw.steps, bw.steps, **rest),
        fused_peak_bytes=peak_bytes(fuse(fw, again=False), fuse(bw, again=False), **rest, in_place=True),
        kernels=sum(map(len, kernels)),
        seconds={name: sum(seconds(k, device) for k in kernels) for name, device in devices.items()},
        redrawn=sum(map(is_random, again)),
        repeated=len(repeated),
        repeated_flops=sum(repeated),
    )


def _again(forward: GraphModule, backward: GraphModule) -> list[Node]:
    """The operations of backward that are in forward, too: both graphs keep the joint graph's names."""
    first = {node.name for node in forward.graph.nodes if node.op == "call_function"}
    return [node for node in backward.graph.nodes if node.op == "call_function" and node.name in first]


def _flat(memories: Sequence[Sequence[Memory]]) -> list[Memory]:
    return [memory for own in memories for memory in own]


def peak_bytes(
    forward: Sequence[Step],
    backward: Sequence[Step],
    *,
    saved: Collection[Memory],
    tangents: Collection[Memory],
    kept: Collection[Memory],
    in_place: bool = False,
) -> int:
    """The most bytes that are alive while the steps run one after the other, first those of forward.

    All that a step reads and writes is alive while it runs; what it writes stays until the last step that reads it has
    run. What no step writes, such as inputs and parameters, does not count: it is alive anyway.

    Args:
        saved: alive at least until backward begins.
        tangents: alive from when backward begins; they do count.
        kept: alive to the end, such as outputs and gradients.
        in_place: whether a step writes into what it is the last to read, as Inductor's kernels do: into memory of the
            same size that a step has written before, but not into tangents. Those of libraries never do.
    """
    before, after = ([(s.sources, s.writes, in_place and not s.alone) for s in steps] for steps in (forward, backward))
    moments: list[tuple[Collection[Memory], Collection[Memory], bool]] = [*before, (saved, tangents, False), *after]
    last = {memory: i for i, (reads, writes, _) in enumerate(moments) for memory in (*reads, *writes)}
    last.update(dict.fromkeys(kept, len(moments)))
    alive: set[Memory] = set()
    now = most = 0
    for i, (reads, writes, reuses) in enumerate(moments):
        replaced = {memory for memory in reads if last[memory] == i and memory in alive}.difference(tangents)
        alive.update(writes)
        now += sum(memory.nbytes for memory in writes)
        most = max(most, now - (_common_bytes(replaced, writes) if reuses else 0))
        over = {memory for memory in (*reads, *writes) if last[memory] == i and memory in alive}
        alive -= over
        now -= sum(memory.nbytes for memory in over)
    return most


def _common_bytes(old: Collection[Memory], new: Collection[Memory]) -> int:
    """How many bytes of the new ones can have the places of old ones of the same size."""
    sizes, wanted = (Counter(memory.nbytes for memory in group) for group in (old, new))
    return sum(nbytes * count for nbytes, count in (sizes & wanted).items())
