"""What backends and partitioners are told of aotkit's own operators."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from aotkit.interfaces import Backend
from aotkit.random import DECOMPOSED


def decompositions_of(backend: Backend) -> dict[Any, Callable[..., Any]]:
    """A backend's table, with what becomes of aotkit's own operators where that says nothing of them."""
    table = backend.decompositions
    return {**DECOMPOSED, **(table() if callable(table) else table)}


def recomputable() -> AbstractContextManager[None]:
    """While this lasts, torch's min-cut computes them again where that is cheap, whoever calls it."""
    from aotkit.torch_private.partitioners import recomputing

    return recomputing(DECOMPOSED)
