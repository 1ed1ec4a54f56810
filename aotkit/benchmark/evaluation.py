"""What a partition costs in memory and time, judged by its two graphs alone: no partitioner computes with this."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule, Node

from aotkit.aot.partition import flops, is_random
from aotkit.benchmark.dataflow import dataflow
from aotkit.benchmark.kernels import DEVICES, fuse, seconds
from aotkit.benchmark.liveness import peak_bytes
from aotkit.inspection import Memory
from aotkit.partitioners.rematerialization.devices import Device


@dataclass(frozen=True)
class Evaluation:
    """One partition. Inputs, parameters and constants count nowhere as memory: they are alive anyway.

    Attributes:
        saved_bytes: distinct storage that lives from forward to backward, and is no output of the function.
        peak_bytes: most that is alive at a time if the graphs run operator by operator: intermediate and saved values,
            tangents until they have been used, outputs and gradients to the end.
        fused_peak_bytes: the same if fused kernels run, as Inductor's: what lives inside one does not count, and
            results take the places of what is read for the last time.
        kernels: how many fused kernels the two graphs take.
        seconds: name of a device -> estimated time of forward and backward.
        redrawn: random operators in the backward graph that forward runs, too, with other numbers: gradients are wrong.
        repeated: the same for matrix products, convolutions and attention.
        repeated_flops: what those take.
    """

    saved_bytes: int
    peak_bytes: int
    fused_peak_bytes: int
    kernels: int
    seconds: Mapping[str, float]
    redrawn: int
    repeated: int
    repeated_flops: int


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
    repeated = [work for node in _again(forward, backward) if (work := flops(node))]
    return Evaluation(
        saved_bytes=sum(memory.nbytes for memory in set(_flat(saved)) - elsewhere),
        peak_bytes=peak_bytes(fw.steps, bw.steps, **rest),
        fused_peak_bytes=peak_bytes(fuse(fw, again=False), fuse(bw, again=False), **rest, in_place=True),
        kernels=sum(map(len, kernels)),
        seconds={name: sum(seconds(k, device) for k in kernels) for name, device in devices.items()},
        redrawn=sum(map(is_random, _again(forward, backward))),
        repeated=len(repeated),
        repeated_flops=sum(repeated),
    )


def _again(forward: GraphModule, backward: GraphModule) -> list[Node]:
    """The operations of backward that are in forward, too: both graphs keep the joint graph's names."""
    first = {node.name for node in forward.graph.nodes if node.op == "call_function"}
    return [node for node in backward.graph.nodes if node.op == "call_function" and node.name in first]


def _flat(memories: Sequence[Sequence[Memory]]) -> list[Memory]:
    return [memory for own in memories for memory in own]
