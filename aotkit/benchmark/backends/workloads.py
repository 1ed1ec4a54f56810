"""What backends are timed on, from a call of few microseconds to a model: name -> function and inputs."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from aotkit.benchmark import transformers_models as hf
from aotkit.benchmark.models import MLP
from aotkit.benchmark.workloads import ResidualLoss, gpt2, tutorial
from aotkit.random import random_state

Case = tuple[Callable[..., Any], tuple[Any, ...]]
CHAIN = 4  # links


def chain(x: Tensor) -> Tensor:
    """Sine, tanh and exp, four times."""
    for _ in range(CHAIN):
        x = torch.exp(-torch.tanh(torch.sin(x)))
    return x


def gelu_dropout(x: Tensor, bias: Tensor) -> Tensor:
    """x [rows, width], bias [width]."""
    return F.dropout(F.gelu(x + bias), 0.1)


def layer_norm(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """x [rows, width], the others [width]."""
    return F.layer_norm(x, scale.shape, scale, shift)


def softmax(x: Tensor) -> Tensor:
    """Of rows."""
    return F.softmax(x, -1)


def _leaf(*shape: int) -> Tensor:
    return torch.randn(*shape).requires_grad_()


def _of_leaves(fn: Callable[..., Any], *shapes: tuple[int, ...]) -> Case:
    return fn, tuple(_leaf(*shape) for shape in shapes)


def _mlp() -> Case:
    return MLP(4, 512), (torch.randn(256, 512), torch.randn(256, 512))


def _gpt2_block() -> Case:
    model: Any = gpt2(layers=1)
    return model.transformer.h[0], (_leaf(2, 128, 768),)


def _resnet_block() -> Case:
    return ResidualLoss(64), (_leaf(8, 64, 28, 28), torch.randn(8, 64, 28, 28))


def _bert() -> Case:
    module, inputs = hf.with_values(hf.bert, layers=2, heads=2, width=128, batch=4, length=128)
    return module, tuple(inputs)


WORKLOADS: Mapping[str, Callable[[], Case]] = {
    "tutorial-2x4": partial(_of_leaves, tutorial, *[(2, 4)] * 4),
    "tutorial-1024x2048": partial(_of_leaves, tutorial, *[(1024, 2048)] * 4),
    "chain": partial(_of_leaves, chain, (1024, 1024)),
    "gelu-dropout": partial(_of_leaves, gelu_dropout, (2048, 768), (768,)),
    "layer-norm": partial(_of_leaves, layer_norm, (2048, 768), (768,), (768,)),
    "softmax": partial(_of_leaves, softmax, (2048, 1024)),
    "mlp": _mlp,
    "gpt2-block": _gpt2_block,
    "resnet-block": _resnet_block,
    "bert": _bert,
}


def build(name: str, device: str) -> Case:
    """The function and its inputs; the same numbers every time.

    Raises:
        ImportError: transformers is missing.
    """
    with random_state(), torch.device(device):
        torch.manual_seed(0)
        return WORKLOADS[name]()
