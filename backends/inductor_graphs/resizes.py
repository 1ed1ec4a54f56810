"""Images that are resized: what Inductor computes by index, and the gradients that it has wrong.

Its gradient of the nearest pixel takes equal windows, whatever scale is asked for: of 5 rows resized by 0.7, each gets
that of another (torch 2.11 to 2.15). There, and where rounding decides which pixel is the nearest, gradients are added
up by index.
"""

from collections.abc import Callable, Mapping
from ctypes import c_float
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten
_GRADIENT = _aten.upsample_nearest2d_backward.default


def with_right_resizes(decompositions: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """The same table, with gradients of the nearest pixel where Inductor has others."""
    otherwise = decompositions.get(_GRADIENT)

    def gradient(
        grad: Tensor, output_size: Any, input_size: Any, scale_h: float | None = None, scale_w: float | None = None
    ) -> Any:
        shapes = zip(grad.shape[2:], input_size[2:], (scale_h, scale_w), strict=True)
        if all(_has_equal_windows(*shape) for shape in shapes):
            args = grad, output_size, input_size, scale_h, scale_w
            return NotImplemented if otherwise is None else otherwise(*args)
        rows = _added_up(grad, 2, input_size[2], scale_h)
        return _added_up(rows, 3, input_size[3], scale_w).to(grad.dtype)

    return {**decompositions, _GRADIENT: gradient}


def _step(size: int, before: int, scale: float | None) -> float:
    """How far two neighbours are apart in the image before, in the precision in which ATen computes that."""
    return c_float(1 / scale if scale else before / size).value


def _has_equal_windows(size: int, before: int, scale: float | None) -> bool:
    """Whether each pixel is the nearest of equally many."""
    if not isinstance(size, int) or not isinstance(before, int) or size % before:
        return False
    step, times = _step(size, before, scale), size // before
    return all(int(c_float(i * step).value) == i // times for i in range(size))


def _added_up(grad: Tensor, dim: int, before: int, scale: float | None) -> Tensor:
    """Gradients along a dimension, each where the nearest pixel was; half precision is added up in float32."""
    size = grad.shape[dim]
    positions = torch.arange(size, device=grad.device, dtype=torch.float32) * _step(size, before, scale)
    shape = [before if d == dim else n for d, n in enumerate(grad.shape)]
    dtype = torch.promote_types(grad.dtype, torch.float32)
    nearest = positions.to(torch.int64).clamp(max=before - 1)
    return grad.new_zeros(shape, dtype=dtype).index_add(dim, nearest, grad.to(dtype))
