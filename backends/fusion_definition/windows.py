"""Images in windows of equal size, each of which becomes one pixel, or of which each is a copy of one."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from aotkit.interfaces import Decompositions
from aotkit.passes import has_equal_windows

aten = torch.ops.aten


def window_decompositions() -> Decompositions:
    """Rules for averages and nearest pixels; what has other windows stays whole."""
    return {
        aten.avg_pool2d.default: _average,
        aten.avg_pool2d_backward.default: _average_gradient,
        aten._adaptive_avg_pool2d.default: _adaptive_average,
        aten._adaptive_avg_pool2d_backward.default: _adaptive_average_gradient,
        aten.upsample_nearest2d.default: _nearest,
        aten.upsample_nearest2d_backward.default: _nearest_gradient,
    }


def _average(
    x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False, *others: Any, **options: Any
) -> Any:
    size = _of_average(x.shape, kernel, stride, padding, others, options)
    return _reduced(x, size, torch.mean) if size is not None and x.is_floating_point() else NotImplemented


def _average_gradient(
    grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, ceil_mode: bool, *others: Any, **options: Any
) -> Any:
    size = _of_average(x.shape, kernel, stride, padding, others, options)
    return NotImplemented if size is None else _copied(grad / math.prod(size), size)


def _of_average(
    shape: Sequence[Any], kernel: Any, stride: Any, padding: Any, others: Sequence[Any], options: dict[str, Any]
) -> tuple[int, int] | None:
    """The windows' height and width, if they cover the image without a rest."""
    height, width = _pair(kernel)
    divisor = options.get("divisor_override", others[1] if len(others) > 1 else None)
    is_equal = _pair(stride or kernel) == (height, width) and _pair(padding) == (0, 0) and divisor is None
    return (height, width) if is_equal and _divides(shape, (height, width)) else None


def _adaptive_average(x: Tensor, size: Sequence[Any]) -> Any:
    found = _windows(x.shape[-2:], size)
    return NotImplemented if found is None else _reduced(x, found, torch.mean)


def _adaptive_average_gradient(grad: Tensor, x: Tensor) -> Any:
    found = _windows(x.shape[-2:], grad.shape[-2:])
    return NotImplemented if found is None else _copied(grad / math.prod(found), found)


def _windows(before: Sequence[Any], after: Sequence[Any]) -> tuple[int, int] | None:
    sizes = *before, *after
    if not all(isinstance(n, int) and n > 0 for n in sizes) or any(b % a for b, a in zip(before, after, strict=True)):
        return None
    return before[0] // after[0], before[1] // after[1]


def _nearest(x: Tensor, size: Sequence[Any], scale_h: float | None = None, scale_w: float | None = None) -> Any:
    scales = zip(size, x.shape[2:], (scale_h, scale_w), strict=True)
    found = _windows(size, x.shape[2:]) if all(has_equal_windows(*scale) for scale in scales) else None
    return NotImplemented if found is None else _copied(x, found)


def _nearest_gradient(
    grad: Tensor, size: Sequence[Any], before: Sequence[Any], scale_h: float | None = None, scale_w: float | None = None
) -> Any:
    scales = zip(size, before[2:], (scale_h, scale_w), strict=True)
    found = _windows(size, before[2:]) if all(has_equal_windows(*scale) for scale in scales) else None
    return NotImplemented if found is None else _reduced(grad, found, torch.sum)


def _pair(sizes: Any) -> tuple[int, int]:
    given = [sizes] if isinstance(sizes, int) else [*sizes]
    return given[0], given[-1]


def _divides(shape: Sequence[Any], size: tuple[int, int]) -> bool:
    return all(isinstance(n, int) and n > 0 and n % by == 0 for n, by in zip(shape[-2:], size, strict=True))


def _reduced(x: Tensor, size: tuple[int, int], reduce: Callable[[Tensor, list[int]], Tensor]) -> Tensor:
    """One pixel for each window."""
    x, place = _rows_first(x)
    shape, (height, width) = x.shape, size
    apart = x.reshape(
        *shape[:place], shape[place] // height, height, shape[place + 1] // width, width, *shape[place + 2 :]
    )
    return _in_order(reduce(apart, [place + 1, place + 3]), place)


def _copied(x: Tensor, size: tuple[int, int]) -> Tensor:
    """A window for each pixel."""
    x, place = _rows_first(x)
    shape, (height, width) = x.shape, size
    apart = x.unsqueeze(place + 2).unsqueeze(place + 1)
    apart = apart.expand(*shape[: place + 1], height, shape[place + 1], width, *shape[place + 2 :])
    whole = [*shape[:place], shape[place] * height, shape[place + 1] * width, *shape[place + 2 :]]
    return _in_order(apart.clone(memory_format=torch.contiguous_format).view(whole), place)


def _rows_first(x: Tensor) -> tuple[Tensor, int]:
    """An image, with its channels last if they are that in memory, and which dimension its rows are."""
    if x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last):
        return x.permute(0, 2, 3, 1), 1
    return x, x.dim() - 2


def _in_order(x: Tensor, place: int) -> Tensor:
    return x.permute(0, 3, 1, 2) if place == 1 and x.dim() == 4 else x
