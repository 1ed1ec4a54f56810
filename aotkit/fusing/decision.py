"""What becomes of a module."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class Decision:
    """What becomes of a module.

    Attributes:
        outcome: "compiled", "swapped" for a kernel of `aotkit.nn`, or "left" as it is.
        reason: why it is left; else what it is.
        forward: what runs in the place of the module's own, if it is swapped.
        group: modules of one class and one group share what is compiled.
    """

    outcome: str
    reason: str
    forward: Callable[[nn.Module, Tensor], Tensor] | None = None
    group: int = 0
