"""What is asked of an engine, which computes definitions: nvFuser is one, and the fuser of aotkit's own another."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from aotkit.stages import Kernel

Around = Callable[[int], AbstractContextManager[Any]]  # entered with the number of a kernel, as long as that runs


class Definition(Protocol):
    """Operations on values while it is built, in a `with` block; then a function of tensors.

    A value has a method `dtype()`, which gives a type of the engine's `DataType`.

    Attributes:
        ops: the operations, by nvFuser's names, such as `add`, `where`, `reshape`, `sum`. One that has no code may
            raise CompileError, and so may `add_output`.
    """

    @property
    def ops(self) -> Any: ...

    def define_tensor(
        self, *, sizes: Sequence[int], strides: Sequence[int], dtype: Any, static_sizes: bool, is_cpu: bool
    ) -> Any:
        """The next input; `is_cpu`: a tensor without dimensions that is on the CPU, among others on the device."""
        ...

    def define_scalar(self, number: Any, *, dtype: Any) -> Any:
        """A constant."""
        ...

    def add_output(self, value: Any, /) -> None:
        """The next result."""
        ...

    def execute(self, inputs: list[Tensor], *, device: torch.device) -> list[Tensor]:
        """The results; inputs have the sizes and strides that are defined. The list may be changed."""
        ...


class Engine(Protocol):
    """What computes definitions. Equal engines share their fusions, so it has a hash."""

    @property
    def name(self) -> str:
        """As messages call it."""
        ...

    @property
    def DataType(self) -> Any:
        """Its types: Double, Float, Half, BFloat16, Int, Int32, Bool."""
        ...

    @property
    def of_open_sizes(self) -> "Engine | None":
        """The one for definitions that are alike but for sizes, which share what they can; None if sizes are fixed."""
        ...

    @property
    def indexes(self) -> bool:
        """Whether its definitions have `take` and `take_along`, which read by index."""
        ...

    def version(self) -> str | None:
        """What decides what its kernels compute, besides definitions and aotkit; None where that cannot be told."""
        ...

    def definition(self) -> AbstractContextManager[Definition]:
        """A new one, to be built."""
        ...

    def kernels(
        self,
        definition: Any,
        inputs: list[Tensor],
        device: torch.device,
        operations: Mapping[str, Sequence[Any]],
    ) -> list[Kernel]:
        """What a call launches, in order.

        Args:
            operations: the graph's, by name, and the values that each returns.
        """
        ...

    def observed(
        self,
        definition: Any,
        inputs: list[Tensor],
        device: torch.device,
        around: Around,
    ) -> list[Tensor]:
        """The results; number `i` of `kernels` runs inside of `around(i)`. The list of inputs may be changed."""
        ...
