"""Images that are resized: what Inductor computes by index, and the gradients that it has wrong.

Its gradient of the nearest pixel takes equal windows, whatever scale is asked for: of 5 rows resized by 0.7, each gets
that of another (torch 2.11 to 2.15). There, and where rounding decides which pixel is the nearest, gradients are added
up by index.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from aotkit.passes import has_equal_windows, nearest_step

_aten = torch.ops.aten
_GRADIENT = _aten.upsample_nearest2d_backward.default


def with_right_resizes(decompositions: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """The same table, with gradients of the nearest pixel where Inductor has others."""
    otherwise = decompositions.get(_GRADIENT)

    def gradient(
        grad: Tensor, output_size: Any, input_size: Any, scale_h: float | None = None, scale_w: float | None = None
    ) -> Any:
        shapes = zip(grad.shape[2:], input_size[2:], (scale_h, scale_w), strict=True)
        if all(has_equal_windows(*shape) for shape in shapes):
            args = grad, output_size, input_size, scale_h, scale_w
            return NotImplemented if otherwise is None else otherwise(*args)
        rows = _added_up(grad, 2, input_size[2], scale_h)
        return _added_up(rows, 3, input_size[3], scale_w).to(grad.dtype)

    return {**decompositions, _GRADIENT: gradient}


def _added_up(grad: Tensor, dim: int, before: int, scale: float | None) -> Tensor:
    """Gradients along a dimension, each where the nearest pixel was; half precision is added up in float32."""
    size = grad.shape[dim]
    positions = torch.arange(size, device=grad.device, dtype=torch.float32) * nearest_step(size, before, scale)
    shape = [before if d == dim else n for d, n in enumerate(grad.shape)]
    dtype = torch.promote_types(grad.dtype, torch.float32)
    nearest = positions.to(torch.int64).clamp(max=before - 1)
    return grad.new_zeros(shape, dtype=dtype).index_add(dim, nearest, grad.to(dtype))
