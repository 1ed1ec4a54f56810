"""What to compile, and how: names of backends and partitioners, resolved."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from aotkit.capture.auto import default_backend
from aotkit.capture.shared_random import SharedRandom
from aotkit.inspection import Graphs
from aotkit.interfaces import Backend, Partitioner
from aotkit.random import Draws
from aotkit.registry import BACKENDS, PARTITIONERS, BackendSpec, get_backend, get_partitioner, name_of
from aotkit.stages import Pipeline

Randomness = Literal["shared", "torch"]


@dataclass(frozen=True)
class Recipe:
    """What to compile, and how.

    Attributes:
        fn: the function.
        name: what messages call it.
        backend_name, partition_name: what messages call those.
        random: whose random numbers it draws, see `compile`.
    """

    fn: Callable[..., Any]
    name: str
    backend: Backend
    backend_name: str
    partition: Partitioner
    partition_name: str
    dynamic: bool
    random: Randomness

    def pipeline(self) -> Pipeline:
        new_graphs = functools.partial(Graphs, name=self.name, backend=self.backend_name, partition=self.partition_name)
        return Pipeline(new_graphs, self.backend, self.partition)

    def randomness(self, seed: Tensor | None) -> AbstractContextManager[Any]:
        """What the function runs under, so that it draws its random numbers from a seed.

        Raises:
            SeedNeeded: it draws, and there is none.
        """
        return SharedRandom(Draws(seed)) if self.random == "shared" else nullcontext()

    def compiler_by_name(self, attribute: str, function: Any) -> str | None:
        """How another process gets a graph compiler of the backend; None where it knows none of that name."""
        name = self.backend_name
        is_installed = BACKENDS.is_installed(name) and getattr(get_backend(name), attribute) == function
        return f"aotkit.get_backend({name!r}).{attribute}" if is_installed or name.startswith("dynamo:") else None

    def partitioner_by_name(self) -> str | None:
        """The same for the partitioner."""
        name = self.partition_name
        is_installed = PARTITIONERS.is_installed(name) and get_partitioner(name) == self.partition
        return f"aotkit.get_partitioner({name!r})" if is_installed else None

    @property
    def subject(self) -> str:
        return f"{self.name!r} with backend {self.backend_name!r} and partition {self.partition_name!r}"


def recipe_of(
    fn: Any, backend: BackendSpec, partition: str | Partitioner, dynamic: bool, random: Randomness = "torch"
) -> Recipe:
    """Resolve the names; what cannot be had fails here, before any tracing."""
    backend = default_backend() if backend == "auto" else backend
    partition = "min_cut" if partition == "auto" else partition
    return Recipe(
        fn=fn,
        name=getattr(fn, "__qualname__", type(fn).__name__),
        backend=get_backend(backend),
        backend_name=name_of(backend),
        partition=get_partitioner(partition),
        partition_name=name_of(partition),
        dynamic=dynamic,
        random=random,
    )
