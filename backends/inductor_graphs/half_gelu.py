"""GELU of half-precision values without erf, which takes a GPU longer than the memory traffic of a fused kernel.

GELU is x Phi(x), with the normal distribution's Phi. For a > 0, Phi(-a) is 2**p(a), where p is almost a parabola: with
a polynomial of degree 7 the result has all digits of half precision. Eager's 1 + erf(x / sqrt(2)) loses them where x is
below -4.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from aotkit.torch_private.inductor import setting

aten = torch.ops.aten
GELU = ("aten.gelu.default", "aten.gelu_backward.default")
HALF = (torch.float16, torch.bfloat16)
# Of p, from the constant up: the least largest error of 2**p for a up to 6, 3.3e-6 of its value. From there on 2**p
# keeps falling: float16 has no such small numbers any more, and float32 none from 14 on.
TAIL = (
    -0.999995319, -1.1512509, -0.458464265, -0.0539604691, 0.00850815767, -0.000930602341, 6.16087526e-05,
    -1.83534802e-06,
)  # fmt: skip
# A value with more operators than this, its constants among them, Inductor writes to memory on a GPU if two read it.
# Phi, which both GELU and its gradient need, was such a value, in float32: 80 MiB in a layer of a UNet.
THRESHOLD = 30
LONGER = 3 * len(TAIL)


def realize_opcount_threshold(gm: GraphModule) -> int | None:
    """Inductor's setting of that name for a graph, in which a GELU counts hardly more than it did with erf."""
    threshold: int | None = setting("realize_opcount_threshold")  # None: it depends on the device
    # By name, as a graph that was copied has copies of operators in `meta`.
    has_gelu = any(n.target is aten.exp2.default and str(n.meta.get("original_aten")) in GELU for n in gm.graph.nodes)
    return (threshold or THRESHOLD) + LONGER if has_gelu else threshold


def with_half_gelu(decompositions: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """The same table, where GELU of half precision and its gradient have no erf."""
    forward, backward = decompositions[aten.gelu.default], decompositions[aten.gelu_backward.default]

    def gelu(x: Tensor, *, approximate: str = "none") -> Any:
        if approximate != "none" or x.dtype not in HALF:
            return forward(x, approximate=approximate)
        wide = x.float()
        return (wide * _normal_distribution(wide)).to(x.dtype)

    def gelu_backward(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Any:
        if approximate != "none" or x.dtype not in HALF or grad.dtype != x.dtype:
            return backward(grad, x, approximate=approximate)
        wide = x.float()
        density = torch.exp(wide * wide * -0.5) / math.sqrt(2 * math.pi)
        return (grad.float() * (_normal_distribution(wide) + wide * density)).to(x.dtype)

    return {**decompositions, aten.gelu.default: gelu, aten.gelu_backward.default: gelu_backward}


def _normal_distribution(x: Tensor) -> Tensor:
    """Phi of float32 values."""
    size = x.abs()
    power = size * TAIL[-1] + TAIL[-2]
    for coefficient in TAIL[-3::-1]:
        power = power * size + coefficient
    tail = torch.exp2(power)
    return torch.where(x < 0, tail, 1 - tail)
