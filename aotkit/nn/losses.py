"""The last layer of a language model and its loss as one: logits of all words are never in memory at once."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from aotkit.nn.fused import Function, function_of
from aotkit.nn.patterns import linear_cross_entropy as pattern

Reduction = Literal["mean", "sum", "none"]


class LinearCrossEntropy(nn.Module):
    """`cross_entropy(linear(x), targets)` for x of shape [..., in_features] and targets of shape [...].

    Rows are computed some at a time, with their gradients, where that lowers the peak of memory; see docs/chunks.md.
    Parameters are those of `nn.Linear(in_features, num_classes)`, and load its state_dict; `weight` may be tied.

    Args:
        class_weight: [num_classes], of each class in the loss; a buffer.
        reduction, ignore_index, label_smoothing: as for `nn.CrossEntropyLoss`.
        softcap: logits are at most that large: `softcap * tanh(logits / softcap)`.
        z_loss: how often to add the square of each row's logarithm of the sum of exponentials.
        options: those of `aotkit.compile`.

    Raises:
        ValueError: an argument is none of these.
        UnknownNameError, UnavailableError: the backend or partitioner cannot be had.
    """

    bias: nn.Parameter | None
    class_weight: Tensor | None

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        bias: bool = False,
        *,
        class_weight: Tensor | None = None,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        softcap: float | None = None,
        z_loss: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f"reduction must be 'mean', 'sum' or 'none', not {reduction!r}.")
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing must be between 0 and 1, not {label_smoothing!r}.")
        if softcap is not None and not softcap > 0:
            raise ValueError(f"softcap must be above 0, or None, not {softcap!r}.")
        linear = nn.Linear(in_features, num_classes, bias, device, dtype)
        self.weight = linear.weight
        self.register_parameter("bias", linear.bias)
        self.register_buffer("class_weight", class_weight, persistent=False)
        self.reduction, self.ignore_index, self.label_smoothing = reduction, ignore_index, label_smoothing
        self.softcap, self.z_loss, self.options = softcap, z_loss, options
        self._compiled()  # what cannot be had fails here

    def logits(self, x: Tensor) -> Tensor:
        """Of all classes, as for a prediction: [..., in_features] -> [..., num_classes]."""
        found = nn.functional.linear(x, self.weight, self.bias)
        return found if self.softcap is None else self.softcap * torch.tanh(found / self.softcap)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return _run(self._compiled)(x, self.weight, targets, self.bias, self.class_weight, *self._configuration())

    def extra_repr(self) -> str:
        classes, features = self.weight.shape
        return f"in_features={features}, num_classes={classes}, bias={self.bias is not None}, {self.reduction}"

    def _configuration(self) -> tuple[Any, ...]:
        return self.reduction, self.ignore_index, self.label_smoothing, self.softcap, self.z_loss

    def _compiled(self) -> Function:
        return _function_of(self._configuration(), self.options)


def _function_of(configuration: tuple[Any, ...], options: Mapping[str, Any]) -> Function:
    return function_of(pattern, configuration, {"partition": "min_cut", **options})


def _run(compiled: Callable[[], Function]) -> Function:
    """What runs: inside of other compilers the pattern as it is."""
    return pattern if torch.compiler.is_compiling() else compiled()


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    *,
    class_weight: Tensor | None = None,
    reduction: Reduction = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    z_loss: float = 0.0,
) -> Tensor:
    """`cross_entropy(linear(x, weight, bias), targets)`, for weight of shape [classes, features]; else as the module.

    Each set of options is compiled once, for each kind of inputs.
    """
    configuration = (reduction, ignore_index, label_smoothing, softcap, z_loss)
    run = _run(lambda: _function_of(configuration, {}))
    return run(x, weight, targets, bias, class_weight, *configuration)
