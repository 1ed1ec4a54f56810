"""Other inputs for a second run: values that show what a first run baked in, and other sizes."""

import zlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from aotkit.checking.in_pieces import are_finite, ends, is_floating, pieces, span

SEED = 0xF12E5
SMALLEST = 1e-3  # the smallest factor
MOST_INTEGERS = 1 << 20
MOST_DRAWN = 1 << 16  # drawing takes longer than everything else here
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def far_values(values: Tensor) -> Tensor:
    """Other signs, other orders of magnitude, other indices, another mask.

    They stay between the smallest, or 0, and the largest that there are, so that probabilities, variances and indices
    remain such. Indices that are in range may yet not be so together: that would end the process on a CUDA device, so
    integers and masks stay as they are there.
    """
    if values.is_cuda and not is_floating(values):
        return values.clone()
    return _in_pieces(values, _far(values))


def near_values(values: Tensor) -> Tensor:
    """The same integers, and floating-point values up to a quarter nearer to zero."""
    if not is_floating(values):
        return values.clone()
    draw = _Draw(values)
    return _in_pieces(values, lambda part: part * draw.each(part, lambda amounts: 1 - amounts / 4))


Change = Callable[[Tensor], Tensor]


def _in_pieces(values: Tensor, change: Change) -> Tensor:
    others = torch.empty_like(values, memory_format=torch.contiguous_format)
    for part, other in pieces(values, others):
        other.copy_(change(part))
    return others


class _Draw:
    """Random numbers that are the same in each run for the same input, and others for another input."""

    def __init__(self, values: Tensor) -> None:
        first = str(values.flatten()[:8].tolist())
        self.generator = torch.Generator().manual_seed(SEED + zlib.crc32(first.encode()))

    def each(self, part: Tensor, of_amounts: Callable[[Tensor], Tensor]) -> Tensor:
        """One for each of many elements, made of amounts in [0, 1); the same ones again after `MOST_DRAWN`."""
        if not len(part):
            return part
        amounts = torch.rand(min(len(part), MOST_DRAWN), generator=self.generator, device="cpu")
        numbers = of_amounts(amounts).to(part.device, part.real.dtype)
        return numbers.repeat(-(-len(part) // len(numbers)))[: len(part)]

    def permutation(self, count: int) -> Tensor:
        return torch.randperm(count, generator=self.generator, device="cpu")


def _far(values: Tensor) -> Change:
    """How the pieces of values become others."""
    draw = _Draw(values)
    if values.dtype is torch.bool:
        return lambda part: part[draw.permutation(len(part))]
    if values.dtype in INTEGERS:
        return _other_integers(values, draw)
    if values.is_complex():
        return lambda part: part * _factors(part, draw, signed=True)
    if not values.is_floating_point():
        return lambda part: part.roll(1)
    is_finite = are_finite(values)
    finite = [part if is_finite else part[part.isfinite()] for (part,) in pieces(values)]
    found = [ends(part) for part in finite if len(part)]
    low, high = min((a for a, _ in found), default=0.0), max((b for _, b in found), default=0.0)
    if low >= 0 or high <= 0:
        return lambda part: part * _factors(part, draw)

    def change(part: Tensor) -> Tensor:
        others = part * _factors(part, draw, signed=True)
        if is_finite:  # these are nearer to zero
            return others.clamp_(low, high)
        return torch.where(others.isfinite(), others.clamp(low, high), others)

    return change


def _factors(part: Tensor, draw: _Draw, signed: bool = False) -> Tensor:
    """Of many orders of magnitude; if they are signed, half of them are negative."""

    def factors(amounts: Tensor) -> Tensor:
        amounts = amounts * 2 - 1 if signed else amounts
        sizes = amounts.abs()
        return (SMALLEST ** (sizes / sizes.max())).copysign(amounts)  # a single number moves the most

    return draw.each(part, factors)


def _other_integers(values: Tensor, draw: _Draw) -> Change:
    """Those from 0 on, each for another one up to the largest: so what was different is different, and in range.

    Negative ones have meanings of their own. Numbers in order may be limits of ranges, as of the sequences in a batch,
    and have to be in order.
    """
    largest = max((int(part.max()) for (part,) in pieces(values) if len(part)), default=-1)
    if largest >= MOST_INTEGERS:
        return lambda part: part.roll(1)
    if largest < 0 or (values.numel() > 1 and bool((values[1:] >= values[:-1]).all())):
        return lambda part: part
    others = draw.permutation(largest + 1).to(values)
    return lambda part: torch.where(part >= 0, others[part.clamp_min(0).long()], part)


def resized(
    tensors: Sequence[Tensor], layouts: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> Sequence[Tensor] | None:
    """The same values, over and over, in other shapes and strides; None where tensors share memory."""
    distinct = {id(t): (t, layout) for t, layout in zip(tensors, layouts, strict=True)}
    storages = {t.untyped_storage()._cdata for t, _ in distinct.values()}
    if len(storages) < len(distinct):
        return None
    found = {key: _resized(t, *layout) for key, (t, layout) in distinct.items()}
    return [found[id(t)] for t in tensors]


def _resized(tensor: Tensor, shape: Sequence[int], stride: Sequence[int]) -> Tensor:
    if list(tensor.shape) == list(shape) or not tensor.numel():
        return tensor
    size, offset = span(shape, stride), int(tensor.storage_offset())
    values = tensor.detach().resolve_conj().resolve_neg().flatten()
    storage = values.repeat(-(-(size + offset) // len(values)))
    with torch.no_grad():
        other = storage.as_strided(shape, stride, offset)
        if tensor.is_conj():
            other = other.conj()
    # A leaf stays one, and what is none does not become one: eager treats them differently where they are mutated.
    leaf = other.requires_grad_(tensor.requires_grad)
    return leaf if tensor.is_leaf else leaf.view_as(leaf)
