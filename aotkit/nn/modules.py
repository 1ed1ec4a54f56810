"""Fused modules for transformers: bias, activation, dropout, residual and layer norm in one compiled function.

They have the signatures of xFormers' (0.0.12 to 0.0.21), and the parameters of the unfused modules: each loads the
other's state_dict. What they compute is a plain function of `aotkit.nn.patterns`.
"""

from typing import Any

import torch
from torch import Tensor, nn

from aotkit.nn import patterns
from aotkit.nn.fused import Fused
from aotkit.nn.patterns import Activation, ResidualNormStyle, member


class _Dropping(Fused):
    """A pattern with a bias and dropout.

    Attributes:
        p: the probability of dropping an element in training; in eval mode nothing is dropped.
        bias: [bias_shape], at first 0; or None.
    """

    requires_residual = False
    bias: nn.Parameter | None
    # With Inductor on a CPU, [8, 256, 512]: relu's forward pass takes 1.7 ms, and 25 with the mask that min_cut saves.
    partition = "nx_min_cut"

    def __init__(self, p: float, bias_shape: int | None, options: dict[str, Any], *configuration: Any) -> None:
        if not 0 <= p < 1:
            raise ValueError(f"p is the probability of dropping an element, at least 0 and below 1, not {p!r}.")
        super().__init__(options, p, bias_shape, *configuration)
        self.p = p
        self.register_parameter("bias", None if bias_shape is None else nn.Parameter(torch.zeros(bias_shape)))

    def init_weights(self) -> None:
        """Set the bias to 0."""
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def extra_repr(self) -> str:
        bias = None if self.bias is None else len(self.bias)
        return f"p={self.p}, bias_shape={bias}"

    @property
    def _p(self) -> float:
        return self.p if self.training else 0.0


class FusedBiasActivationDropout(_Dropping):
    """`dropout(activation(x + bias))`, for x of shape [..., bias_shape], as one function compiled by aotkit.

    Args:
        p: the probability of dropping an element in training, at least 0 and below 1.
        activation: of `Activation`, or its string; None: none.
        bias_shape: the size of the last dimension; None: no bias, and x of any shape.
        options: those of `aotkit.compile`. backend "auto": as there, but eager where no C++ compiler is found.
            partition "auto": what was the fastest for the pattern, `nx_min_cut`, or `min_cut` with layer norm.

    Raises:
        ValueError: p or activation is none of these.
        UnknownNameError, UnavailableError: the backend or partitioner cannot be had.
    """

    pattern = staticmethod(patterns.bias_activation_dropout)

    def __init__(
        self, p: float, activation: Activation | str | None = None, bias_shape: int | None = None, **options: Any
    ) -> None:
        chosen = None if activation is None else member(Activation, "activation", activation)
        super().__init__(p, bias_shape, options, chosen)
        self.activation = chosen

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, self.bias, self._p, self.activation)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation and self.activation.value}"


class FusedBiasDropoutRes(_Dropping):
    """`dropout(x + bias) + residual`, for x of shape [..., bias_shape]; otherwise as `FusedBiasActivationDropout`."""

    requires_residual = True
    pattern = staticmethod(patterns.bias_dropout_res)

    def __init__(self, p: float, bias_shape: int | None = None, **options: Any) -> None:
        super().__init__(p, bias_shape, options)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.run(x, residual, self.bias, self._p)


class FusedBiasDropoutResLayerNorm(_Dropping):
    """Bias, dropout, residual and layer norm, for x of shape [..., d_model]; see `patterns`.

    Args:
        p, bias_shape, options: as for `FusedBiasActivationDropout`.
        d_model: the size of the last dimension.
        layer_norm_style: of `ResidualNormStyle`, or its string.

    Raises:
        ValueError: p or layer_norm_style is none of these.
        UnknownNameError, UnavailableError: the backend or partitioner cannot be had.
    """

    requires_residual = True
    pattern = staticmethod(patterns.bias_dropout_res_layernorm)
    # There its backward pass takes 5 ms, and with nx_min_cut, which saves less, 20 to 35.
    partition = "min_cut"

    def __init__(
        self,
        p: float,
        d_model: int,
        bias_shape: int | None = None,
        layer_norm_style: ResidualNormStyle | str = ResidualNormStyle.Post,
        **options: Any,
    ) -> None:
        style = member(ResidualNormStyle, "layer_norm_style", layer_norm_style)
        super().__init__(p, bias_shape, options, d_model, style)
        self.layer_norm_style = style
        self.norm = nn.LayerNorm(d_model)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        norm = self.norm
        style = self.layer_norm_style
        return self.run(x, residual, self.bias, norm.weight, norm.bias, norm.eps, self._p, style)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, layer_norm_style={self.layer_norm_style.value}"


class MLP(nn.Module):
    """Linear, activation, dropout, linear, dropout: [..., dim_model] -> the same, with fused activations and dropouts.

    Its parameters are `mlp.0.weight`, `mlp.0.bias`, `mlp.3.weight` and `mlp.3.bias`, as in the unfused `nn.Sequential`.
    The linear layers add their bias themselves: in a matrix product that is free, and they can be replaced or hooked.

    Args:
        dropout: the probability of dropping an element in training.
        activation, options: as for `FusedBiasActivationDropout`.
        hidden_layer_multiplier: the hidden size, as a multiple of dim_model.
        bias: whether the linear layers have one.
    """

    def __init__(
        self,
        dim_model: int,
        dropout: float,
        activation: Activation | str | None,
        hidden_layer_multiplier: int,
        bias: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        hidden = hidden_layer_multiplier * dim_model
        self.mlp = nn.Sequential(
            nn.Linear(dim_model, hidden, bias),
            FusedBiasActivationDropout(dropout, activation, **options),
            nn.Identity(),  # where the unfused dropout is, so that all that follows keeps its number
            nn.Linear(hidden, dim_model, bias),
            FusedBiasActivationDropout(dropout, **options),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.mlp(inputs)
        return outputs
