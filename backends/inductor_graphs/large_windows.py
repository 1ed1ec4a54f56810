"""Pooling windows that reach beyond the padded image, as `ceil_mode` allows.

Inductor's kernels look at each place of a window. To pool an image of 7 x 7 in a window of 1280 x 1280, as the
EfficientNet of transformers does by default, took 136 of the 144 ms of a training step under torch 2.11 on an H100.

And the gradient of an average divides by the whole window, under torch 2.11 to 2.15 at least, where eager divides by
what lies in the padded image (pytorch/pytorch#198119): that EfficientNet's was too small by 33,000 times.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
DIMENSIONS = {
    aten.avg_pool2d.default: 2,
    aten.avg_pool3d.default: 3,
    aten.max_pool2d_with_indices.default: 2,
    aten.max_pool3d_with_indices.default: 3,
}
GRADIENTS = {aten.avg_pool2d_backward.default: 2, aten.avg_pool3d_backward.default: 3}


def with_cropped_windows(decompositions: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """The same table, with windows no larger than the padded image, if they have no gaps, and with right gradients."""
    pooling = {op: _cropping(op, DIMENSIONS[op], decompositions.get(op)) for op in DIMENSIONS}
    return {**decompositions, **pooling, **{op: _dividing(op, GRADIENTS[op]) for op in GRADIENTS}}


def _cropping(op: Any, dimensions: int, decomposition: Callable[..., Any] | None) -> Callable[..., Any]:
    def pool(x: Tensor, kernel_size: Sequence[int], *args: Any, **kwargs: Any) -> Any:
        given = arguments(op, (x, kernel_size, *args), kwargs)
        window = each(kernel_size, dimensions)
        padding = each(given["padding"], dimensions)
        image = [n + 2 * p for n, p in zip(x.shape[-dimensions:], padding, strict=True)]
        cropped = [min(k, n) if type(n) is int else k for k, n in zip(window, image, strict=True)]
        if cropped != window and set(each(given.get("dilation", 1), dimensions)) == {1}:
            stride = each(given["stride"] or window, dimensions)
            steps = [c if c < k else s for c, k, s in zip(cropped, window, stride, strict=True)]
            return op(**{**given, "kernel_size": cropped, "stride": steps})
        return NotImplemented if decomposition is None else decomposition(x, kernel_size, *args, **kwargs)

    return pool


def _dividing(op: Any, dimensions: int) -> Callable[..., Any]:
    def gradient(
        grad: Tensor,
        x: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Any:
        if not (ceil_mode and count_include_pad and divisor_override is None):
            return NotImplemented
        window, pads = each(kernel_size, dimensions), each(padding, dimensions)
        steps = each(stride or window, dimensions)
        for i, (k, s, p) in enumerate(zip(window, steps, pads, strict=True), -dimensions):
            begin = torch.arange(grad.shape[i], device=grad.device) * s - p
            inside = (begin + k).clamp(max=x.shape[i] + p) - begin
            grad = (grad / inside.reshape(-1, *[1] * (-1 - i))).to(x.dtype)
        return op(grad, x, kernel_size, stride, padding, ceil_mode, count_include_pad, 1)

    return gradient


def arguments(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """All by name, with their defaults."""
    names = op._schema.arguments
    given = {argument.name: value for argument, value in zip(names, args, strict=False)}
    return {**{a.name: a.default_value for a in names if a.has_default_value()}, **given, **kwargs}


def each(value: int | Sequence[int], dimensions: int) -> list[int]:
    """One number for each dimension, of one for all or of as many."""
    values = [value] if isinstance(value, int) else list(value)
    return values * dimensions if len(values) == 1 else values
