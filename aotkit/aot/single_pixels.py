"""Strides of images of a single pixel: no assertion of Inductor's looks at them, but cuDNN's results depend on them.

An image of one pixel fits both layouts of images, whatever strides its dimensions of size 1 have. PyTorch takes that
for channels last which has the strides of channels last, and gives the gradient of a convolution's weight this layout.
A saved image may have other strides than a graph was compiled for, as the result of a convolution does whose input fits
both layouts. Where Inductor hands on its memory to what is computed of it, the gradient fails an assertion: in
ResNet-18 with images of 32 x 32, under torch 2.11.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

_GRADIENT = torch.ops.aten.convolution_backward.default


def with_exact_strides(
    gm: GraphModule, example_inputs: Sequence[Any], *runs: Callable[..., Any]
) -> Sequence[Callable[..., Any]]:
    """The same calls, whose first argument is a list of inputs, with the strides of the example where they matter."""
    strides = {i: x.stride() for i, x in enumerate(example_inputs) if isinstance(x, Tensor) and _is_single_pixel(x)}
    if not strides or not any(_is_ambiguous(node) for node in gm.graph.nodes):
        return runs
    return [_settled(run, strides) for run in runs]


def _settled(run: Callable[..., Any], strides: Mapping[int, Sequence[int]]) -> Callable[..., Any]:
    def call(inputs: list[Any], *args: Any) -> Any:
        for i, expected in strides.items():
            if (own := inputs[i].stride()) != expected:
                sizes = inputs[i].shape
                exact = [e if n == 1 else o for n, o, e in zip(sizes, own, expected, strict=True)]
                inputs[i] = inputs[i].as_strided(sizes, exact)
        return run(inputs, *args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _is_ambiguous(node: Any) -> bool:
    """Whether it is the gradient of a convolution over more than a pixel, of images of one."""
    if node.target is not _GRADIENT:
        return False
    _, image, weight = (argument.meta["val"] for argument in node.args[:3])
    return _is_single_pixel(image) and any(n != 1 for n in weight.shape[2:])


def _is_single_pixel(x: Tensor) -> bool:
    """Whether it is images of one pixel, known when the graph is compiled."""
    numbers = (*x.shape[1:], *x.stride())
    return x.dim() in (4, 5) and all(type(n) is int for n in numbers) and all(n == 1 for n in x.shape[2:])
