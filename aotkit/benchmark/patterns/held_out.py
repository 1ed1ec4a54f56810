"""Patterns of `aotkit bench patterns --held-out`: nothing in aotkit was tuned for them.

Each has a shape and a type of its own, as models have them: of what gates, normalises, rotates, scales and scores.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from aotkit.benchmark.patterns.cases import EPS, Masked, P, Pattern, Shape

GROUPS = 32
SMOOTHING, Z_LOSS = 0.1, 1e-4
BALANCE, FOCUS = 0.25, 2  # alpha and gamma of the focal loss


@dataclass(frozen=True)
class HeldOut(Pattern):
    """A pattern of one shape, whose sizes have letters.

    Attributes:
        inputs: letters of each; those of the first one are the shape's.
        outputs: letters of each.
        again: the inputs that a backward pass reads, and nothing else of the forward pass.
        constants: inputs without gradients.
        shapes: of a device's type.
        dtype: of its inputs.
        mask: as of `Pattern`.
    """

    inputs: Mapping[str, str]
    outputs: Sequence[str]
    again: Sequence[str]
    shapes: Mapping[str, Shape]
    constants: Sequence[str] = ()
    dtype: torch.dtype = torch.bfloat16
    mask: Masked | None = None

    def size_of(self, name: str, shape: Shape) -> Shape:
        return self._size(self.inputs[name], shape)

    def needs_gradient(self, name: str) -> bool:
        return super().needs_gradient(name) and name not in self.constants

    def ideal_bytes(self, shape: Shape, itemsize: int, *, step: bool) -> float:
        read = {name: math.prod(self.size_of(name, shape)) * self._itemsize(name, itemsize) for name in self.inputs}
        outputs = sum(math.prod(self._size(letters, shape)) for letters in self.outputs) * itemsize
        forward = sum(read.values()) + outputs
        if not step:
            return forward
        gradients = sum(nbytes for name, nbytes in read.items() if self.needs_gradient(name))
        return forward + outputs + sum(read[name] for name in self.again) + gradients

    def _size(self, letters: str, shape: Shape) -> Shape:
        first = next(iter(self.inputs.values()))
        sizes = dict(zip(first, shape, strict=True))
        return tuple(sizes[letter] for letter in letters)

    @staticmethod
    def _itemsize(name: str, itemsize: int) -> int:
        return torch.int64.itemsize if name == "targets" else itemsize


def _swiglu(x: Tensor, up: Tensor) -> Tensor:
    return F.silu(x) * up


def _geglu_dropout(x: Tensor, up: Tensor) -> Tensor:
    return F.dropout(F.gelu(x) * up, P)


def _add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return total, F.rms_norm(total, weight.shape, weight, EPS)


def _adaptive_layer_norm(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:]) * (1 + scale[:, None]) + shift[:, None]


def _group_norm_silu(x: Tensor, weight: Tensor, offset: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, GROUPS, weight, offset))


def _smooth_cross_entropy(x: Tensor, targets: Tensor) -> Tensor:
    """With label smoothing and z-loss, in float32."""
    logits = x.to(torch.promote_types(x.dtype, torch.float32))
    z = logits.logsumexp(-1)
    return F.cross_entropy(logits, targets, label_smoothing=SMOOTHING) + Z_LOSS * (z * z).mean()


def _rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    def turned(x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat((-second, first), -1)

    return query * cos + turned(query) * sin, key * cos + turned(key) * sin


def _unit_norm(x: Tensor, weight: Tensor) -> Tensor:
    length: Tensor = x.norm(dim=-1, keepdim=True)
    return x / length * weight


def _layer_scale(x: Tensor, branch: Tensor, weight: Tensor) -> Tensor:
    """With stochastic depth: some samples go without the branch."""
    share = torch.full((x.shape[0], 1, 1), 1 - P, device=x.device, dtype=x.dtype)
    return x + branch * weight * (torch.bernoulli(share) / (1 - P))


def _instance_norm_leaky_relu(x: Tensor) -> Tensor:
    return F.leaky_relu(F.instance_norm(x), 0.01)


def _squeeze_excite(x: Tensor, gate: Tensor) -> Tensor:
    return x * torch.sigmoid(gate)[:, :, None, None]


def _focal_loss(x: Tensor, labels: Tensor) -> Tensor:
    p = torch.sigmoid(x)
    of_label = p * labels + (1 - p) * (1 - labels)
    share = BALANCE * labels + (1 - BALANCE) * (1 - labels)
    losses = F.binary_cross_entropy_with_logits(x, labels, reduction="none")
    return (share * (1 - of_label) ** FOCUS * losses).sum() / x.shape[0]


def _clip_loss(x: Tensor) -> Tensor:
    """CLIP's: each text is its image's, and each image its text's."""
    own = torch.arange(x.shape[0], device=x.device)
    return (F.cross_entropy(x, own) + F.cross_entropy(x.t(), own)) / 2


def _layer_norm_gelu(x: Tensor, weight: Tensor, offset: Tensor) -> Tensor:
    return F.gelu(F.layer_norm(x, weight.shape, weight, offset, EPS))


def _on(gpu: Shape, cpu: Shape) -> Mapping[str, Shape]:
    return {"cuda": gpu, "cpu": cpu}


HELD_OUT = {
    case.name: case
    for case in (
        HeldOut("swiglu", _swiglu, {"x": "nw", "up": "nw"}, ["nw"], ["x", "up"], _on((8192, 11008), (64, 256))),
        HeldOut(
            "geglu dropout", _geglu_dropout, {"x": "nw", "up": "nw"}, ["nw"], ["x", "up"],
            _on((8192, 8192), (64, 256)), mask="element",
        ),
        HeldOut(
            "add rms_norm", _add_rms_norm, {"x": "nw", "residual": "nw", "weight": "w"}, ["nw", "nw"],
            ["x", "weight"],  # the sum, which is an output, is as large as x
            _on((8192, 4096), (64, 256)),
        ),
        HeldOut(
            "adaptive layer_norm", _adaptive_layer_norm, {"x": "ntw", "scale": "nw", "shift": "nw"}, ["ntw"],
            ["x", "scale"], _on((32, 1024, 1152), (4, 16, 96)),
        ),
        HeldOut(
            "group_norm silu", _group_norm_silu, {"x": "nchw", "weight": "c", "offset": "c"}, ["nchw"],
            ["x", "weight", "offset"], _on((8, 320, 64, 64), (2, 64, 8, 8)),
        ),
        HeldOut(
            "cross_entropy smooth z", _smooth_cross_entropy, {"x": "nw", "targets": "n"}, [""], ["x", "targets"],
            _on((4096, 50257), (64, 501)),
        ),
        HeldOut(
            "rotary", _rotary, {"query": "nhtd", "key": "nhtd", "cos": "td", "sin": "td"}, ["nhtd", "nhtd"],
            ["cos", "sin"], _on((4, 32, 2048, 128), (2, 4, 16, 32)), ("cos", "sin"),
        ),
        HeldOut(
            "unit norm", _unit_norm, {"x": "nthd", "weight": "d"}, ["nthd"], ["x", "weight"],
            _on((4, 2048, 32, 128), (2, 16, 4, 32)),
        ),
        HeldOut(
            "layer_scale depth", _layer_scale, {"x": "ntw", "branch": "ntw", "weight": "w"}, ["ntw"],
            ["branch", "weight"], _on((64, 1024, 768), (64, 8, 48)), mask="sample",
        ),
        HeldOut(
            "instance_norm leaky_relu", _instance_norm_leaky_relu, {"x": "nchw"}, ["nchw"], ["x"],
            _on((8, 64, 256, 256), (2, 4, 16, 16)),
        ),
        HeldOut(
            "squeeze_excite", _squeeze_excite, {"x": "nchw", "gate": "nc"}, ["nchw"], ["x", "gate"],
            _on((32, 256, 56, 56), (2, 8, 7, 7)),
        ),
        HeldOut(
            "focal_loss", _focal_loss, {"x": "nw", "labels": "nw"}, [""], ["x", "labels"],
            _on((200000, 80), (100, 80)), ("labels",), torch.float32,
        ),
        HeldOut("clip_loss", _clip_loss, {"x": "nn"}, [""], ["x"], _on((4096, 4096), (64, 64))),
        HeldOut(
            "layer_norm gelu", _layer_norm_gelu, {"x": "nw", "weight": "w", "offset": "w"}, ["nw"],
            ["x", "weight", "offset"], _on((8191, 5003), (63, 203)), (), torch.float32,
        ),
    )
}  # fmt: skip
