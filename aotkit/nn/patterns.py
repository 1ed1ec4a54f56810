"""The patterns that `aotkit.nn` fuses, as plain functions: what its modules compute, operator by operator."""

from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

E = TypeVar("E", bound=StrEnum)


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


class RMSNormStyle(StrEnum):
    """Which values an RMS norm rounds to 16 bits, and what it multiplies by; all normalise in float32.

    Llama: the normalised values come in the type of x, then weight multiplies them. So do Mistral's, Qwen's, ...
    T5: they come in the type of a weight of 16 bits; weight in float32 gives results in float32.
    Olmo: weight multiplies them in float32, results come in the type of x. So do Gemma 4's, Helium's, ...
    Gemma: the same with 1 + weight.
    Torch: `nn.RMSNorm`'s: as Olmo's, but in float64 for float64.
    """

    Llama = "llama"
    T5 = "t5"
    Olmo = "olmo"
    Gemma = "gemma"
    Torch = "torch"


def member(kind: type[E], name: str, value: str) -> E:
    """Of an enumeration, by itself or its string; else ValueError."""
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(repr(member.value) for member in kind)
        raise ValueError(f"{name} must be one of {names}, not {value!r}.") from None


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


def rms_norm(
    x: Tensor, weight: Tensor | None, eps: float | None, style: RMSNormStyle, residual: Tensor | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """x, divided by the root of the mean of its squares, times weight; of x + residual with that sum, if there is one.

    Args:
        weight: of the shape of x's last dimensions, over which the mean is; None: over the last one.
        eps: is added to the mean; None: the distance from 1 to the next number.
    """
    if residual is not None:
        x = residual + x
    promoted = x.to(torch.promote_types(x.dtype, torch.float32))
    wide = promoted if style is RMSNormStyle.Torch else promoted.float()
    dims = list(range(-(1 if weight is None else weight.dim()), 0))
    eps = torch.finfo(wide.dtype).eps if eps is None else eps
    inverse = torch.rsqrt(wide.pow(2).mean(dims, keepdim=True) + eps)
    normed = (promoted if style is RMSNormStyle.T5 else wide) * inverse
    result = _scaled(normed, weight, style, x.dtype)
    return result if residual is None else (result, x)


def _scaled(normed: Tensor, weight: Tensor | None, style: RMSNormStyle, dtype: torch.dtype) -> Tensor:
    """By the weight of an RMS norm of what has this type."""
    if weight is None:
        return normed.to(dtype)
    match style:
        case RMSNormStyle.Llama:
            return weight * normed.to(dtype)
        case RMSNormStyle.T5:
            return weight * (normed.to(weight.dtype) if weight.dtype.itemsize == 2 else normed)
        case RMSNormStyle.Gemma:
            return (normed * (1.0 + weight.float())).to(dtype)
        case _:
            return (weight * normed).to(dtype)


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None,
    class_weight: Tensor | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    softcap: float | None,
    z_loss: float,
) -> Tensor:
    """`cross_entropy(softcap * tanh(linear(x) / softcap), targets)`, and `z_loss` times the squares of `logsumexp`.

    The loss is computed in float32 of logits in 16 bits.

    Args:
        x, targets: [..., features] and [...].
    """
    logits = F.linear(x.flatten(0, -2), weight, bias)
    logits = logits.float() if logits.dtype.itemsize < 4 else logits
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    flat = targets.flatten()
    loss = F.cross_entropy(
        logits, flat, class_weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
    )
    if z_loss:
        counts = (flat != ignore_index).to(logits.dtype)
        squares = logits.logsumexp(-1).square() * counts
        loss = loss + z_loss * {"none": squares, "sum": squares.sum(), "mean": squares.sum() / counts.sum()}[reduction]
    return loss.view(targets.shape) if reduction == "none" else loss


def _biased(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias


def _dropout(x: Tensor, p: float) -> Tensor:
    return F.dropout(x, p) if p else x
