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

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
# Of p, from the constant up: the least largest error of 2**p for a up to 6, 3.3e-6 of its value. From there on 2**p
# keeps falling: float16 has no such small numbers any more, and float32 none from 14 on.
TAIL = (
    -0.999995319, -1.1512509, -0.458464265, -0.0539604691, 0.00850815767, -0.000930602341, 6.16087526e-05,
    -1.83534802e-06,
)  # fmt: skip
HALF_GELU_STEPS = len(TAIL)


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
