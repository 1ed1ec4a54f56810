"""The patterns of `aotkit bench patterns`: xFormers' grid of fused functions, and others of transformers."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from aotkit.nn import patterns
from aotkit.nn.patterns import Activation, ResidualNormStyle

P = 0.1
EPS = 1e-5
LABELLED = 0.02  # share of labels that are 1
Shape = tuple[int, ...]  # the last size is the width
Function = Callable[..., Tensor | tuple[Tensor, ...]]
Masked = Literal["element", "sample"]  # which dropout keeps or drops as a whole


class Traffic(NamedTuple):
    """What has to be read and written at least."""

    full: int  # tensors of the pattern's shape
    width: int = 0  # vectors as long as a row
    bits: int = 0  # for each element
    row_bytes: int = 0

    def nbytes(self, shape: Shape, itemsize: int) -> float:
        elements = math.prod(shape)
        rows = elements // shape[-1]
        values = self.full * elements + self.width * shape[-1]
        return values * itemsize + self.bits * elements / 8 + self.row_bytes * rows


@dataclass(frozen=True)
class Pattern(ABC):
    """A function of tensors."""

    name: str
    fn: Function
    inputs: Collection[str]

    @property
    @abstractmethod
    def mask(self) -> Masked | None:
        """Of its dropout, if it has that."""

    @abstractmethod
    def size_of(self, name: str, shape: Shape) -> Shape:
        """Of an input, where the pattern has this shape."""

    def needs_gradient(self, name: str) -> bool:
        return name != "targets"

    @abstractmethod
    def ideal_bytes(self, shape: Shape, itemsize: int, *, step: bool) -> float:
        """What a forward pass has to move at least, or a step: forward and backward."""


@dataclass(frozen=True)
class Case(Pattern):
    """A pattern of any shape."""

    inputs: Sequence[str]  # "x", "residual" of the shape, "bias", "weight", "offset" as long as a row, "targets"
    forward: Traffic
    backward: Traffic  # with what forward writes for it alone
    drops: bool = True  # whether it has dropout; then it is of xFormers' grid

    @property
    def mask(self) -> Masked | None:
        return "element" if self.drops else None

    def size_of(self, name: str, shape: Shape) -> Shape:
        if name == "targets":
            return (math.prod(shape[:-1]),)
        return shape if name in ("x", "residual") else shape[-1:]

    def ideal_bytes(self, shape: Shape, itemsize: int, *, step: bool) -> float:
        backward = self.backward.nbytes(shape, itemsize) if step else 0
        return self.forward.nbytes(shape, itemsize) + backward


def _activation(activation: Activation, bias: int) -> Case:
    def fn(x: Tensor, bias: Tensor | None = None) -> Tensor:
        return patterns.bias_activation_dropout(x, bias, P, activation)

    # Backward needs the input again; of relu, a bit that tells where it is 0. The mask comes from its seed.
    backward = Traffic(2, bias, bits=2) if activation is Activation.ReLU else Traffic(3, 2 * bias)
    return Case(f"act {activation}{' bias' * bias}", fn, ("x", "bias")[: 1 + bias], Traffic(2, bias), backward)


def _residual(bias: int) -> Case:
    """As in xFormers' benchmark, the residual is x itself."""

    def fn(x: Tensor, bias: Tensor | None = None) -> Tensor:
        return patterns.bias_dropout_res(x, x, bias, P)

    return Case(f"res{' bias' * bias}", fn, ("x", "bias")[: 1 + bias], Traffic(2, bias), Traffic(2, bias))


def _layer_norm(style: ResidualNormStyle, bias: int) -> Case:
    """The same with layer norm."""

    def fn(x: Tensor, weight: Tensor, offset: Tensor, bias: Tensor | None = None) -> Tensor:
        return patterns.bias_dropout_res_layernorm(x, x, bias, weight, offset, EPS, P, style)

    inputs = ("x", "weight", "offset", "bias")[: 3 + bias]
    return Case(f"ln {style}{' bias' * bias}", fn, inputs, Traffic(2, 2 + bias), Traffic(3, 3 + 2 * bias))


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, EPS)


def _softmax(x: Tensor) -> Tensor:
    return x.softmax(-1)


def _add_norm(x: Tensor, residual: Tensor, weight: Tensor, offset: Tensor) -> Tensor:
    return F.layer_norm(x + residual, weight.shape, weight, offset, EPS)


def _cross_entropy(x: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(x.flatten(0, -2), targets)


ACTIVATIONS = (Activation.ReLU, Activation.GeLU, Activation.SquaredReLU)
CASES = {
    case.name: case
    for case in (
        *(_activation(activation, bias) for activation in ACTIVATIONS for bias in (0, 1)),
        *(_residual(bias) for bias in (0, 1)),
        *(_layer_norm(style, bias) for style in ResidualNormStyle for bias in (0, 1)),
        Case("rms_norm", _rms_norm, ("x", "weight"), Traffic(2, 1), Traffic(3, 2), drops=False),
        Case("softmax", _softmax, ("x",), Traffic(2), Traffic(3), drops=False),
        Case("add_norm", _add_norm, ("x", "residual", "weight", "offset"), Traffic(3, 2), Traffic(5, 3), drops=False),
        Case(
            "cross_entropy", _cross_entropy, ("x", "targets"),
            Traffic(1, row_bytes=8), Traffic(2, row_bytes=8), drops=False,
        ),
    )
}  # fmt: skip


def inputs_of(pattern: Pattern, shape: Shape, dtype: torch.dtype, device: str, *, step: bool) -> list[Tensor]:
    """Its arguments, the same every time; for a step those that it needs gradients of require them."""
    generator = torch.Generator(device).manual_seed(0)

    def one(name: str) -> Tensor:
        size = pattern.size_of(name, shape)
        if name == "targets":
            return torch.randint(shape[-1], size, generator=generator, device=device)
        if name == "labels":
            return (torch.rand(size, generator=generator, device=device) < LABELLED).to(dtype)
        values = torch.randn(size, generator=generator, device=device, dtype=dtype)
        return (values + (name == "weight")).requires_grad_(step and pattern.needs_gradient(name))

    return [one(name) for name in pattern.inputs]
