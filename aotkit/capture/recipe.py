"""What to compile, and how: names of backends and partitioners, resolved."""

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from aotkit.capture.auto import choice_for, default_backend
from aotkit.capture.named import Named
from aotkit.capture.shared_random import SharedRandom
from aotkit.inspection import Graphs
from aotkit.interfaces import Partitioner
from aotkit.random import Draws
from aotkit.registry import AUTO, BackendSpec, get_backend, get_partitioner, name_of
from aotkit.stages import Pipeline

Randomness = Literal["shared", "torch"]


@dataclass(frozen=True)
class Recipe(Named):
    """What to compile, and how.

    Attributes:
        fn: the function.
        random: whose random numbers it draws, see `compile`.
        asked_for: the backend that was asked for: "auto", or `backend_name`.
        why_backend: why "auto" is this backend; "" where it was not asked for, or the graph is not known yet.
    """

    fn: Callable[..., Any]
    dynamic: bool
    random: Randomness
    asked_for: str = ""
    why_backend: str = ""

    def for_inputs(self, inputs: Iterable[object]) -> "Recipe":
        """The recipe for a graph with these inputs, whose devices decide what "auto" is."""
        if self.asked_for != AUTO or self.why_backend:
            return self
        return choice_for(inputs, open_sizes=self.dynamic).in_recipe(self)

    def pipeline(self) -> Pipeline:
        new_graphs = functools.partial(Graphs, name=self.name, backend=self.backend_name, partition=self.partition_name)
        return Pipeline(new_graphs, self.backend, self.partition)

    def randomness(self, seed: Tensor | None) -> AbstractContextManager[Any]:
        """What the function runs under, so that it draws its random numbers from a seed.

        Raises:
            SeedNeeded: it draws, and there is none.
        """
        return SharedRandom(Draws(seed)) if self.random == "shared" else nullcontext()


def recipe_of(
    fn: Any, backend: BackendSpec, partition: str | Partitioner, dynamic: bool, random: Randomness = "torch"
) -> Recipe:
    """Resolve the names; what cannot be had fails here, before any tracing. "auto" waits for a graph."""
    found = default_backend().backend if backend == AUTO else get_backend(backend)
    partition = "min_cut" if partition == "auto" else partition
    return Recipe(
        fn=fn,
        name=getattr(fn, "__qualname__", type(fn).__name__),
        backend=found,
        backend_name=name_of(backend),
        partition=get_partitioner(partition),
        partition_name=name_of(partition),
        dynamic=dynamic,
        random=random,
        asked_for=name_of(backend),
    )
