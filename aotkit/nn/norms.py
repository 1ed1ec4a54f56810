"""`FusedRMSNorm`: the RMS norms of transformers' models and of torch, as one compiled function."""

from collections.abc import Callable
from functools import partial
from typing import Any, overload

import torch
from torch import Tensor, nn

from aotkit.capture import HOOKS
from aotkit.errors import UnsupportedError
from aotkit.nn import patterns
from aotkit.nn.fused import Fused
from aotkit.nn.norm_styles import style_of
from aotkit.nn.patterns import RMSNormStyle, member


class FusedRMSNorm(Fused):
    """RMS norm over the last dimensions, with or without a residual that is added before; see `patterns.rms_norm`.

    Args:
        normalized_shape: the size of the last dimension, or of several; None: of any size, and without a weight.
        eps: is added to the mean of squares; None: as `nn.RMSNorm` takes it.
        style: of `RMSNormStyle`, or its string: which values are rounded when.
        options: those of `aotkit.compile`. "auto": what was the fastest, the fuser with `min_cut`; without a C++
            compiler eager.

    Raises:
        ValueError: style is none of these.
        UnknownNameError, UnavailableError: the backend or partitioner cannot be had.
    """

    pattern = staticmethod(patterns.rms_norm)
    # Forward and backward of Llama's, [2, 512, 4096] in float32, on a thread of a CPU: 13 ms, Inductor 35.
    backend = ["fuser", "inductor"]  # noqa: RUF012
    partition = "min_cut"
    weight: nn.Parameter | None

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...] | None,
        eps: float | None = 1e-6,
        style: RMSNormStyle | str = RMSNormStyle.Llama,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        style = member(RMSNormStyle, "style", style)
        super().__init__(options, eps, style)
        self.eps, self.style = eps, style
        weight = None if normalized_shape is None else torch.empty(normalized_shape, device=device, dtype=dtype)
        self.register_parameter("weight", None if weight is None else nn.Parameter(weight))
        self.init_weights()

    @classmethod
    def from_module(cls, module: nn.Module, **options: Any) -> "FusedRMSNorm":
        """In the place of an RMS norm of transformers, torch or one's own: the same parameter, under the same name.

        Which style it has, and which of its attributes is eps, is found out by small probes on a CPU.

        Raises:
            UnsupportedError: it is none that is known; the message says why.
        """
        if any(getattr(module, hooks) for hooks in HOOKS):
            raise UnsupportedError(f"{type(module).__name__} has hooks, which another module would not run.")
        style, eps = style_of(module)
        fused = cls(None, getattr(module, eps), style, **options)
        fused.weight = dict(module.named_parameters(recurse=False)).get("weight")
        return fused.train(module.training)

    def init_weights(self) -> None:
        """Set the weight to what scales by 1."""
        if self.weight is not None:
            nn.init.constant_(self.weight, 0.0 if self.style is RMSNormStyle.Gemma else 1.0)

    @overload
    def forward(self, x: Tensor, residual: None = None) -> Tensor: ...
    @overload
    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]: ...
    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """The norm of x; or that of x + residual, and that sum, which is the next residual."""
        return self.run(x, self.weight, self.eps, self.style, residual)

    def extra_repr(self) -> str:
        shape = None if self.weight is None else tuple(self.weight.shape)
        return f"{shape}, eps={self.eps}, style={self.style.value}"


def rms_norm_forward(module: nn.Module, **options: Any) -> Callable[[nn.Module, Tensor], Tensor]:
    """`forward` of a module that is an RMS norm, compiled: a function of such a module and of x.

    It reads weight and eps at each call, and can be pickled.

    Args:
        options: as for `FusedRMSNorm`.

    Raises:
        UnsupportedError: it is none that is known; the message says why.
    """
    style, eps = style_of(module)
    return partial(_forward, FusedRMSNorm(None, None, style, **options), eps)


def _forward(fused: FusedRMSNorm, eps: str, module: nn.Module, x: Tensor) -> Tensor:
    return fused.run(x, getattr(module, "weight", None), getattr(module, eps), fused.style, None)
