"""How fast a device is, as far as the choice between saving and recomputing depends on it."""

import functools
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch

from aotkit.partitioners.rematerialization.values import Values
from aotkit.passes import flops, is_tensor
from aotkit.torch_private.fake_tensors import outside_tracing

LAUNCH = 3e-6
ROUNDS = 3
STEPS = 4  # to which a measured rate is rounded, in an octave


@dataclass(frozen=True)
class Device:
    """A roofline.

    Attributes:
        bandwidth: bytes per second, read or written.
        flops: floating-point operations per second, of matrix products.
        launch: seconds that a kernel takes at least.
    """

    bandwidth: float
    flops: float
    launch: float = LAUNCH


def device_of(values: Values) -> Device:
    """The one that does most of a graph's work, with the type of that."""
    return measured(*_most_of(values))


def typical_gpu_of(values: Values) -> Device | None:
    """One that is the same whatever else a machine does; None where most of a graph's work is not on a GPU.

    What recomputing adds to a step was estimated with it for ViT-B, ResNet-50 and Llama as an H200 took it, by a factor
    of 1.5 at most, and several times too high for Swin-T and ConvNeXt-T.
    """
    device, dtype = _most_of(values)
    if device.type == "cpu":
        return None
    return Device(bandwidth=4e12, flops=6e14 if dtype.itemsize < 4 else 5e13)  # an H200, without TF32


def _most_of(values: Values) -> tuple[torch.device, torch.dtype]:
    """The device and type of most floating-point operations of a graph's products; of most memory, if it has none.

    Not of most memory in any case: what normalisations compute of bfloat16 has float32 in between.
    """
    work, sizes = Counter[tuple[torch.device, torch.dtype]](), Counter[tuple[torch.device, torch.dtype]]()
    for node in values.nodes:
        if is_tensor(node) and node.meta["val"].is_floating_point():
            kind = (node.meta["val"].device, node.meta["val"].dtype)
            work[kind] += flops(node)
            sizes[kind] += values.nbytes(node)
    kinds = (+work or sizes).most_common(1)
    return kinds[0][0] if kinds else (torch.device("cpu"), torch.float32)


@functools.cache
def measured(device: torch.device, dtype: torch.dtype) -> Device:
    """What a copy and a matrix product of this type take, the best of a few; measured once in a process.

    It is rounded, by at most 9 %, so that another process most likely cuts a graph in the same way: what compilers keep
    on disk is then found again.
    """
    size = 1024 if device.type == "cpu" else 4096
    with outside_tracing(), torch.no_grad(), torch.device(device):
        source = torch.ones(16 * size * size, dtype=torch.uint8)
        target = torch.empty_like(source)
        matrix = torch.ones(size, size, dtype=dtype)
        copying = _best_time(device, lambda: target.copy_(source))
        multiplying = _best_time(device, lambda: matrix @ matrix)
    return Device(_rounded(2 * source.numel() / copying), _rounded(2 * size**3 / multiplying))


def _rounded(rate: float) -> float:
    return math.pow(2.0, round(STEPS * math.log2(rate)) / STEPS)


def _best_time(device: torch.device, run: Callable[[], torch.Tensor]) -> float:
    times = []
    for _ in range(1 + ROUNDS):
        start = time.perf_counter()
        run()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times[1:])  # the first one warms up
