"""Other inputs for a second run: values that show what a first run baked in, and other sizes."""

import zlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

SEED = 0xF12E5
SMALLEST = 1e-3  # the smallest factor
MOST_INTEGERS = 1 << 20
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def far_values(values: Tensor) -> Tensor:
    """Other signs, other orders of magnitude, other indices, another mask.

    They stay between the smallest, or 0, and the largest that there are, so that probabilities, variances and indices
    remain such. Indices that are in range may yet not be so together: that would end the process on a CUDA device, so
    integers and masks stay as they are there.
    """
    if values.is_cuda and not (values.is_floating_point() or values.is_complex()):
        return values.clone()
    if values.dtype is torch.bool:
        return values[torch.randperm(len(values), generator=_generator(values), device="cpu")]
    if values.dtype in INTEGERS:
        return _other_integers(values)
    if not (values.is_floating_point() or values.is_complex()):
        return values.roll(1)
    amounts = _random(values, torch.rand)
    factors = SMALLEST ** (amounts / amounts.max()) if values.numel() else amounts  # a single number moves the most
    if values.is_complex():
        return values * (factors * _random(values, torch.randn).sign()).to(values.real.dtype)
    finite = values[values.isfinite()]
    if not bool((finite < 0).any() & (finite > 0).any()):
        return values * factors.to(values.dtype)
    others = values * (factors * _random(values, torch.randn).sign()).to(values.dtype)
    return torch.where(others.isfinite(), others.clamp(finite.min(), finite.max()), others)


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

    Negative ones have meanings of their own. Numbers in order may be limits of ranges, as of the sequences in a batch,
    and have to be in order.
    """
    valid = values[values >= 0]
    if not valid.numel():
        return values.clone()
    largest = int(valid.max())
    if largest >= MOST_INTEGERS:
        return values.roll(1)
    if values.numel() > 1 and bool((values[1:] >= values[:-1]).all()):
        return values.clone()
    others = torch.randperm(largest + 1, generator=_generator(values), device="cpu").to(values)
    return torch.where(values >= 0, others[values.clamp_min(0).long()], values)


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
    size = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    offset = int(tensor.storage_offset())
    values = tensor.detach().resolve_conj().resolve_neg().flatten()
    storage = values.repeat(-(-(size + offset) // len(values)))
    with torch.no_grad():
        other = storage.as_strided(shape, stride, offset)
        if tensor.is_conj():
            other = other.conj()
    # A leaf stays one, and what is none does not become one: eager treats them differently where they are mutated.
    leaf = other.requires_grad_(tensor.requires_grad)
    return leaf if tensor.is_leaf else leaf.view_as(leaf)
