"""A function to compile and its inputs, as the zoo lists them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CPU = torch.device("cpu")


class Inputs:
    """Makes the inputs of one call, the same ones for the same seed.

    Attributes:
        dtype: takes the place of float32.
        leaves: the tensors that the call is differentiated with respect to.
    """

    def __init__(self, device: torch.device, seed: int, dtype: torch.dtype = torch.float32) -> None:
        self.device = device
        self.seed = seed
        self.dtype = dtype
        self.leaves: list[Tensor] = []
        self._generator = torch.Generator().manual_seed(seed)

    def values(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        values = torch.randn(shape, generator=self._generator, dtype=dtype)
        return values.to(self.device, self.dtype if dtype is torch.float32 else dtype)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A leaf that requires gradients, as parameters are."""
        self.leaves.append(self.values(*shape, dtype=dtype).requires_grad_())
        return self.leaves[-1]

    def given(self, *numbers: float) -> Tensor:
        """These numbers, as a leaf that requires gradients."""
        self.leaves.append(torch.tensor(numbers, dtype=self.dtype, device=self.device, requires_grad=True))
        return self.leaves[-1]

    def computed(self, *shape: int) -> Tensor:
        """Requires gradients but is no leaf, as activations are: it may be mutated."""
        return self.normal(*shape).clone()

    def integers(self, high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=self._generator).to(self.device)


@dataclass(frozen=True)
class Case:
    """One function to compile.

    Attributes:
        build: returns the function or module; called once for eager, and once to be compiled.
        inputs: the arguments of one call.
    """

    name: str
    build: Callable[[torch.device], Any]
    inputs: Callable[[Inputs], tuple[Any, ...]]

    @classmethod
    def of(cls, name: str, function: Callable[..., Any], inputs: Callable[[Inputs], tuple[Any, ...]]) -> "Case":
        """A function that is the same on every device."""
        return cls(name, lambda device: function, inputs)


def build(case: Case, device: torch.device = CPU) -> Any:
    """The function or module of a case; modules have equal parameters each time."""
    torch.manual_seed(3)
    return case.build(device)


def inputs(
    case: Case, seed: int, dtype: torch.dtype = torch.float32, device: torch.device = CPU
) -> tuple[Inputs, tuple[Any, ...]]:
    """The arguments of one call; also sets the seed of the random numbers that the function draws."""
    new = Inputs(device, seed, dtype)
    args = case.inputs(new)
    torch.manual_seed(seed)
    return new, args
