"""Run a function on tensors without values, to see what Python it runs."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from aotkit.aot.environment import TensorReads, random_state


class Fakes:
    """Fake copies of tensors, one for each."""

    def __init__(self) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode

        self._mode = FakeTensorMode()
        self._reads = TensorReads()
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}  # id -> the tensor, and its copy

    def of(self, tensor: Tensor) -> Tensor:
        """The fake copy of a tensor; of such a copy, itself."""
        if self._mode.is_our_fake(tensor):
            return tensor
        if id(tensor) not in self._copies:
            fake = self._mode.from_tensor(tensor)
            self._copies[id(tensor)] = tensor, fake
            self._reads.inputs.add(id(fake))
        return self._copies[id(tensor)][1]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Operators take fake tensors alone, and refuse real ones; random generators stay as they are."""
        with warnings.catch_warnings(), torch.set_grad_enabled(torch.is_grad_enabled()), random_state():
            # Fake copies are made of `.grad` too, which warns for tensors that are not leaves.
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor")
            with self._mode, self._reads:
                yield
