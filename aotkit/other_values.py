"""Other inputs for a second run: values that show what a first run baked in, and other sizes."""

import math
import zlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

SEED = 0xF12E5
SMALLEST = 1e-3  # the smallest factor
MOST_INTEGERS = 1 << 20
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def far_values(values: Tensor) -> Tensor:
    """Other signs, other orders of magnitude, other indices, a different mask.

    They stay between those that there are, and below zero only where such are, so that probabilities, variances and
    indices remain such: what is out of range would end the process on a CUDA device.
    """
    if values.dtype is torch.bool:
        return _random(values, torch.rand) < 0.5
    if values.dtype in INTEGERS:
        return _other_integers(values)
    if not (values.is_floating_point() or values.is_complex()):
        return values.roll(1)
    amounts = _random(values, torch.rand)
    factors = SMALLEST ** (amounts / amounts.max()) if values.numel() else amounts  # a single number moves the most
    if values.is_complex() or bool((values < 0).any() & (values > 0).any()):
        factors = factors * _random(values, torch.randn).sign()
    return values * factors.to(values.real.dtype)


def near_values(values: Tensor) -> Tensor:
    """The same integers, and floating-point values up to a quarter nearer to zero."""
    if not (values.is_floating_point() or values.is_complex()):
        return values.clone()
    return values * (1 - _random(values, torch.rand) / 4).to(values.real.dtype)


def _random(values: Tensor, distribution: Callable[..., Tensor]) -> Tensor:
    return distribution(values.shape, generator=_generator(values), device="cpu").to(values.device)


def _generator(values: Tensor) -> torch.Generator:
    """The same in each run for the same input, and another one for another input."""
    return torch.Generator().manual_seed(SEED + zlib.crc32(str(values.flatten()[:8].tolist()).encode()))


def _other_integers(values: Tensor) -> Tensor:
    """Those from 0 on, each for another one up to the largest: so what was different is different, and in range.

    Negative ones have meanings of their own. Numbers from 0 on, in order, with gaps between them are limits of ranges,
    as of the sequences in a batch, which have to be in order.
    """
    valid = values[values >= 0]
    if not valid.numel():
        return values.clone()
    largest = int(valid.max())
    if largest >= MOST_INTEGERS:
        return values.roll(1)
    if values[0] == 0 and largest >= values.numel() and bool((values[1:] >= values[:-1]).all()):
        return values.clone()
    others = torch.randperm(largest + 1, generator=_generator(values), device="cpu").to(values)
    return torch.where(values >= 0, others[values.clamp_min(0).long()], values)


def resized(tensors: Sequence[Tensor], layouts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Tensor]:
    """The same values, over and over, in other shapes and strides."""
    found = []
    for tensor, (shape, stride) in zip(tensors, layouts, strict=True):
        size = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if math.prod(shape) else 0
        if list(tensor.shape) == list(shape) or not tensor.numel():
            found.append(tensor)
            continue
        values = tensor.detach().flatten()
        values = values.repeat(-(-size // len(values)))[:size]
        found.append(values.as_strided(shape, stride).requires_grad_(tensor.requires_grad))
    return found
