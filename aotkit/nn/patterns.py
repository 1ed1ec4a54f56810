"""The patterns that `aotkit.nn` fuses, as plain functions: what its modules compute, operator by operator."""

from collections.abc import Callable
from enum import StrEnum

import torch
from torch import Tensor
from torch.nn import functional as F


class Activation(StrEnum):
    """The activations that `FusedBiasActivationDropout` and `MLP` know; the string does, too."""

    SquaredReLU = "squared_relu"
    GeLU = "gelu"
    LeakyReLU = "leaky_relu"
    ReLU = "relu"
    SmeLU = "smelu"


class ResidualNormStyle(StrEnum):
    """Whether layer norm comes before the residual is added, or after."""

    Pre = "pre"
    Post = "post"


def squared_relu(x: Tensor) -> Tensor:
    """relu(x) squared. Source: So et al., "Primer", 2021."""
    y = F.relu(x)
    return y * y


def smelu(x: Tensor, beta: float = 2.0) -> Tensor:
    """relu, with a parabola from -beta to beta.

    Source: Shamir and Lin, "Real World Large Scale Recommendation Systems Reproducibility and Smooth Activations",
    2022.
    """
    return torch.where(x.abs() <= beta, (x + beta) ** 2 / (4 * beta), F.relu(x))


ACTIVATIONS: dict[Activation | None, Callable[[Tensor], Tensor]] = {
    None: lambda x: x,
    Activation.SquaredReLU: squared_relu,
    Activation.GeLU: F.gelu,
    Activation.LeakyReLU: F.leaky_relu,
    Activation.ReLU: F.relu,
    Activation.SmeLU: smelu,
}


def bias_activation_dropout(x: Tensor, bias: Tensor | None, p: float, activation: Activation | None) -> Tensor:
    """`dropout(activation(x + bias))`. p = 0 draws no random numbers."""
    return _dropout(ACTIVATIONS[activation](_biased(x, bias)), p)


def bias_dropout_res(x: Tensor, residual: Tensor, bias: Tensor | None, p: float) -> Tensor:
    """`dropout(x + bias) + residual`."""
    return _dropout(_biased(x, bias), p) + residual


def bias_dropout_res_layernorm(
    x: Tensor,
    residual: Tensor,
    bias: Tensor | None,
    weight: Tensor,
    offset: Tensor,
    eps: float,
    p: float,
    style: ResidualNormStyle,
) -> Tensor:
    """Pre: `norm(dropout(x + bias)) + residual`. Post: `norm(dropout(x + bias) + residual)`.

    Args:
        weight, offset: of the norm, over the last dimension.
    """
    y = _dropout(_biased(x, bias), p)
    if style is ResidualNormStyle.Pre:
        return F.layer_norm(y, weight.shape, weight, offset, eps) + residual
    return F.layer_norm(y + residual, weight.shape, weight, offset, eps)


def _biased(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias


def _dropout(x: Tensor, p: float) -> Tensor:
    return F.dropout(x, p) if p else x
