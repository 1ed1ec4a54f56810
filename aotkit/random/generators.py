"""The states of random generators: torch's, Python's and NumPy's."""

import random
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def random_state() -> Iterator[None]:
    """Put all random generators, also Python's and NumPy's, back at the end to where they were at the start."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    others = other_random_states()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(others[0])
            if len(others) > 1:
                sys.modules["numpy"].random.set_state(others[1])


def other_random_states() -> list[Any]:
    numpy = sys.modules.get("numpy")
    return [random.getstate(), *([numpy.random.get_state()] if numpy is not None else [])]


def random_states() -> list[Tensor]:
    """The states of torch's generators: the CPU's, then one for each CUDA device that is in use."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return [torch.get_rng_state(), *cuda]


def set_random_states(states: Sequence[Tensor]) -> None:
    """Put generators back into the states that `random_states` gave."""
    cpu, *cuda = states
    torch.set_rng_state(cpu)
    torch.cuda.set_rng_state_all(cuda)


class WatchedGenerator:
    """Stands in for the CPU's default generator in `torch.random`, whose functions no torch mode can see.

    Attributes:
        was_set: whether this thread set its state.
        was_seeded: whether it seeded it, be it as before.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self._thread = threading.get_ident()
        self.was_set = self.was_seeded = False

    def set_state(self, state: Tensor) -> torch.Generator:
        self.was_set = self.was_set or self._is_here()
        return self._generator.set_state(state)

    def manual_seed(self, seed: int) -> torch.Generator:
        self.was_seeded = self.was_seeded or self._is_here()
        return self._generator.manual_seed(seed)

    def _is_here(self) -> bool:
        return threading.get_ident() == self._thread

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)


@contextmanager
def watched_generator() -> Iterator[WatchedGenerator]:
    """Stand in for the generator until the end."""
    generator = torch.random.default_generator  # type: ignore[attr-defined]
    watched = WatchedGenerator(generator)
    torch.random.default_generator = watched  # type: ignore[attr-defined, assignment]
    try:
        yield watched
    finally:
        torch.random.default_generator = generator  # type: ignore[attr-defined]
