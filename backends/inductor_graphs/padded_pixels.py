"""Padding of dimensions that have one place.

Inductor for GPUs hands the mask of padding to the load of what is padded. Where that was computed in the same kernel
there is no load, and so no mask: an image of one pixel is repeated by its padding, and averages of 3 x 3 places of it
are 9 times too large (pytorch/pytorch#189895, torch 2.11 to 2.13; 2.14.1 has it mended). Inception v3 with images of
96 x 96 has such averages. So padding selects there, and windows are of the one place.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from aotkit.backends.inductor_graphs.large_windows import DIMENSIONS, arguments, each

aten = torch.ops.aten
_AVERAGES = (aten.avg_pool2d.default, aten.avg_pool3d.default)


def with_selected_pixels(decompositions: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """The same table, where what is padded and what is pooled have no padding in dimensions of one place."""
    pooling = {op: _pooling(op, DIMENSIONS[op], decompositions.get(op)) for op in DIMENSIONS}
    padding = {aten.constant_pad_nd.default: _padding(decompositions.get(aten.constant_pad_nd.default))}
    return {**decompositions, **pooling, **padding}


def _padding(otherwise: Callable[..., Any] | None) -> Callable[..., Any]:
    def pad(x: Tensor, amounts: Sequence[int], value: float = 0) -> Any:
        pairs = list(zip(amounts[::2], amounts[1::2], strict=True))
        pixels = {-i: pair for i, pair in enumerate(pairs, 1) if _is_one(x.shape[-i]) and any(pair)}
        if not pixels:
            return NotImplemented if otherwise is None else otherwise(x, amounts, value)
        filling = torch.full((), value, dtype=x.dtype, device=x.device)
        for dim, (before, after) in pixels.items():
            x = torch.where(_at(before, 1 + before + after, dim, x.device), x, filling)
        rest = [0 if -1 - i // 2 in pixels else amount for i, amount in enumerate(amounts)]
        return aten.constant_pad_nd.default(x, rest, value) if any(rest) else x

    return pad


def _at(place: int, size: int, dim: int, device: torch.device) -> Tensor:
    """Which of the places of a dimension it is."""
    return (torch.arange(size, device=device) == place).reshape(-1, *[1] * (-1 - dim))


def _pooling(op: Any, dimensions: int, otherwise: Callable[..., Any] | None) -> Callable[..., Any]:
    def pool(x: Tensor, kernel_size: Sequence[int], *args: Any, **kwargs: Any) -> Any:
        given = arguments(op, (x, kernel_size, *args), kwargs)
        window, padding = each(kernel_size, dimensions), each(given["padding"], dimensions)
        stride, gaps = each(given["stride"] or window, dimensions), each(given.get("dilation", 1), dimensions)
        pixels = {
            dim: _Window(window[dim], stride[dim], padding[dim], gaps[dim], given)
            for dim in range(-dimensions, 0)
            if padding[dim] and _is_one(x.shape[dim])
        }
        if not pixels or not all(op in _AVERAGES or of_dim.always_covers for of_dim in pixels.values()):
            return NotImplemented if otherwise is None else otherwise(x, kernel_size, *args, **kwargs)
        for dim in pixels:
            window[dim], stride[dim], padding[dim] = 1, 1, 0
        pooled = op(**{**given, "kernel_size": window, "stride": stride, "padding": padding})
        if op not in _AVERAGES:
            sizes = [pixels[dim].number if dim in pixels else -1 for dim in range(-pooled[0].dim(), 0)]
            return tuple(part.expand(sizes) for part in pooled)
        for dim, of_dim in pixels.items():
            pooled = of_dim.average(pooled, dim)
        return pooled

    return pool


class _Window:
    """A window that moves over one place and its padding.

    Attributes:
        number: of windows.
        always_covers: whether the place is in each of them.
    """

    def __init__(self, size: int, step: int, padding: int, gap: int, given: Mapping[str, Any]) -> None:
        self._size, self._step, self._padding = size, step, padding
        self._counts_padding = given.get("count_include_pad") and given.get("divisor_override") is None
        reach, rounds_up = 2 * padding - gap * (size - 1), given["ceil_mode"]
        self.number = (reach + (step - 1 if rounds_up else 0)) // step + 1
        if rounds_up and (self.number - 1) * step > padding:  # no window begins in the padding behind
            self.number -= 1
        places = [padding - i * step for i in range(self.number)]  # of the place, in each window
        self.always_covers = all(0 <= place <= gap * (size - 1) and place % gap == 0 for place in places)

    def average(self, x: Tensor, dim: int) -> Tensor:
        """Of windows without gaps, along a dimension of one place."""
        place = self._padding - torch.arange(self.number, device=x.device) * self._step
        counted = (place + 1 + self._padding).clamp(max=self._size) if self._counts_padding else torch.ones_like(place)
        shape = -1, *[1] * (-1 - dim)
        covers = ((place >= 0) & (place < self._size)).reshape(shape)
        return torch.where(covers, x / counted.reshape(shape), 0.0).to(x.dtype)


def _is_one(size: Any) -> bool:
    """Whether a dimension has one place, known when the graph is compiled."""
    return type(size) is int and size == 1
