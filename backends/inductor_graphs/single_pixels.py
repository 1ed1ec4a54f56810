"""Gradients of convolutions of images of one pixel, which are products of matrices.

An image of one pixel fits both layouts of images. cuDNN's gradient of a weight has the layout that the image's strides
look like; what Inductor was told of it goes by the weight's layout, too (pytorch/pytorch#171622). Where they differ the
backward pass ends in an AssertionError, under torch 2.11 to 2.15 at least: in ResNet-18 with images of 32 x 32, in
decoders that begin with one pixel. Products have no such layouts, and leave out what the kernel reads of the padding:
where a gradient is infinite, that is 0 here and NaN in PyTorch, which multiplies it with zeros.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from aotkit.backends.inductor_graphs.large_windows import each

_GRADIENT = torch.ops.aten.convolution_backward.default


def with_products_for_single_pixels(decompositions: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """The same table, with gradients of convolutions of images of one pixel."""
    otherwise = decompositions.get(_GRADIENT)

    def gradients(grad: Tensor, image: Tensor, weight: Tensor, *args: Any) -> Any:
        if _is_single_pixel(image) and any(n != 1 for n in weight.shape[2:]):
            return _products(grad, image, weight, *args)
        return NotImplemented if otherwise is None else otherwise(grad, image, weight, *args)

    return {**decompositions, _GRADIENT: gradients}


def _products(
    grad: Tensor,
    image: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Of [N, C, 1], [N, C, 1, 1] or [N, C, 1, 1, 1], as `convolution_backward` gives them."""
    taps, reached = grad, weight
    places = []
    steps = zip(*(each(value, weight.dim() - 2) for value in (stride, padding, dilation)), strict=True)
    for dim, (by, pad, apart) in enumerate(steps, 2):
        found = {t: _place(t, by, pad, apart, transposed) for t in range(weight.shape[dim])}
        read = {t: place for t, place in found.items() if place is not None and 0 <= place < grad.shape[dim]}
        taps = _picked(taps, dim, list(read.values()))
        reached = _picked(reached, dim, list(read))
        places.append(list(read))
    count = math.prod(map(len, places))
    pixels = image.reshape(image.shape[0], groups, image.shape[1] // groups)
    taps = taps.reshape(grad.shape[0], groups, grad.shape[1] // groups, count)
    kernel = "gio" if transposed else "goi"
    split = reached.reshape(groups, weight.shape[0] // groups, weight.shape[1], count)
    of_image = of_weight = None
    if output_mask[0]:
        of_image = torch.einsum(f"ngot,{kernel}t->ngi", taps, split).reshape(image.shape)
    if output_mask[1]:
        of_weight = torch.einsum(f"ngot,ngi->{kernel}t", taps, pixels).reshape(reached.shape)
        for dim, kept in enumerate(places, 2):
            of_weight = _spread(of_weight, dim, kept, weight.shape[dim])
    return of_image, of_weight, grad.sum([0, *range(2, grad.dim())]) if output_mask[2] else None


def _place(tap: int, stride: int, padding: int, dilation: int, transposed: bool) -> int | None:
    """Where in the result a tap of the kernel takes the pixel to, or None."""
    if transposed:
        return tap * dilation - padding
    place, between = divmod(padding - tap * dilation, stride)
    return None if between else place


def _picked(x: Tensor, dim: int, places: Sequence[int]) -> Tensor:
    if list(places) == list(range(x.shape[dim])):
        return x
    return torch.cat([x.narrow(dim, place, 1) for place in places] or [x.narrow(dim, 0, 0)], dim)


def _spread(x: Tensor, dim: int, places: Sequence[int], size: int) -> Tensor:
    """The inverse: zeros at all other places."""
    if list(places) == list(range(size)):
        return x
    nothing = x.new_zeros([*x.shape[:dim], 1, *x.shape[dim + 1 :]])
    return torch.cat([x.narrow(dim, places.index(t), 1) if t in places else nothing for t in range(size)], dim)


def _is_single_pixel(x: Tensor) -> bool:
    """Whether it is images of one pixel, known when the graph is compiled."""
    return x.dim() in (3, 4, 5) and all(type(n) is int and n == 1 for n in x.shape[2:])
