"""Large tensors in pieces, so that what is computed of them takes little memory."""

import functools
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from aotkit.torch_private.tensors import unwrapped

PIECE = 1 << 20  # elements
CACHED = 1 << 14  # elements that a CPU has at hand
BLOCK = 1 << 15  # for each thread, of which torch starts none for fewer
WITH_ENDS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Parts of tensors of one shape, all with the same elements of each, at most `PIECE` of them, flat.

    They are views where the tensors are contiguous.
    """
    first = tensors[0]
    if first.numel() <= PIECE:
        yield tuple(t.reshape(-1) for t in tensors)
        return
    # The outermost one: then parts of what is contiguous are, too, and what is written to them is written there.
    dim = next(dim for dim in range(first.dim()) if first.size(dim) > 1)
    half = first.size(dim) // 2
    yield from pieces(*(t.narrow(dim, 0, half) for t in tensors))
    yield from pieces(*(t.narrow(dim, half, first.size(dim) - half) for t in tensors))


def blocks(*parts: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Parts of flat tensors that stay in the caches of a CPU's cores from one operator to the next; elsewhere, all."""
    if parts[0].is_cpu:
        yield from zip(*(torch.split(part, BLOCK * torch.get_num_threads()) for part in parts), strict=True)
    else:
        yield parts


def is_floating(tensor: Tensor) -> bool:
    """Whether arithmetic rounds such values."""
    return tensor.is_floating_point() or tensor.is_complex()


def span(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Over how many elements of memory a tensor reaches."""
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))


def magnitude(tensor: Tensor) -> float:
    """The absolute value of the largest element that is finite; 0 if there is none."""
    return max((_magnitude(part) for (part,) in pieces(tensor) if part.numel()), default=0.0)


def _magnitude(part: Tensor) -> float:
    if part.dtype in WITH_ENDS:
        least, largest = ends(part)
        if math.isfinite(least) and math.isfinite(largest):
            return max(abs(least), abs(largest))
    return float(part.abs().nan_to_num(0.0, 0.0, 0.0).max())


def are_finite(tensor: Tensor) -> bool:
    """Whether no element is NaN or infinite."""
    if tensor.dtype not in WITH_ENDS:
        return bool(tensor.isfinite().all())
    # NaN is both the least and the largest. This reads the values once, and writes none.
    return all(math.isfinite(end) for (part,) in pieces(tensor) if part.numel() for end in ends(part))


def ends(part: Tensor) -> tuple[float, float]:
    """The least and the largest element; NaN if one is."""
    least, largest = torch.stack(part.detach().aminmax()).tolist()  # torch warns of numbers that have gradients
    return least, largest


def same_values(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one shape and type have equal elements, NaN at the same places."""
    return torch.equal(a, b) or all(bool(((x == y) | ((x != x) & (y != y))).all()) for x, y in pieces(a, b))


def checksum(tensor: Tensor) -> int | None:
    """Depends on all bits of a tensor and on where they are; None where there are none to read."""
    tensor = unwrapped(tensor)
    if tensor.is_meta or tensor.layout is not torch.strided:
        return None
    parts = pieces(tensor.detach().resolve_conj().resolve_neg())
    return sum(_checksum(part) * (2 * i + 1) for i, (part,) in enumerate(parts))


def _checksum(part: Tensor) -> int:
    # Of 64 bits, two that change places could cancel: their difference and that of their places are powers of two.
    kind = {1: torch.uint8, 2: torch.int16}.get(part.itemsize, torch.int32)
    # What is empty, or one element, may have been expanded: then its stride is 0.
    bits = part.contiguous().as_strided((part.numel(),), (1,)).view(kind)
    places = _odd_numbers(bits.device)[: len(bits)] if len(bits) <= PIECE else _odd_numbers_to(len(bits), bits.device)
    if bits.is_cpu:  # what is in its cache takes a sixth of the time
        pairs = zip(torch.split(bits, CACHED), torch.split(places, CACHED), strict=True)
        return int(torch.stack([torch.dot(b.to(torch.int64), p) for b, p in pairs]).sum())
    return int((bits * places).sum())


@functools.cache
def _odd_numbers(device: torch.device) -> Tensor:
    return _odd_numbers_to(PIECE, device)


def _odd_numbers_to(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, device=device) * 2 + 1
