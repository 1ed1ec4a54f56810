"""Watch what a function does with torch's random generators, and make it draw the same numbers in float64."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map


class WatchedGenerator:
    """Stands in for the CPU's default generator in `torch.random`, whose functions no torch mode can see.

    Attributes:
        was_set: whether this thread set its state.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self._thread = threading.get_ident()
        self.was_set = False

    def set_state(self, state: Tensor) -> torch.Generator:
        self.was_set = self.was_set or threading.get_ident() == self._thread
        return self._generator.set_state(state)

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


class SameDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Random operators draw in float64 the numbers that they would draw in `dtype`."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dtype = dtype

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        wide: list[tuple[Tensor, Tensor]] = []

        def narrow(value: Any) -> Any:
            if not (isinstance(value, Tensor) and value.dtype is torch.float64):
                return value
            wide.append((value.to(self._dtype), value))
            return wide[-1][0]

        def widen(value: Any) -> Any:
            if not (isinstance(value, Tensor) and value.is_floating_point()):
                return value
            return next((w for n, w in wide if n is value), value.double())

        results = func(*tree_map(narrow, args), **tree_map(narrow, kwargs))
        for n, w in wide:
            if not torch.equal(n, w.to(n.dtype)):  # drawn in place
                w.copy_(n)
        return tree_map(widen, results)
