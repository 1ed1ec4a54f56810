"""What is compiled, by which backend and partitioner, and what those are called: here, and in another process."""

import operator
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from aotkit.inspection import Graphs
from aotkit.interfaces import Backend, Partitioner
from aotkit.registry import BACKENDS, PARTITIONERS, get_backend, get_partitioner


def is_importable(obj: Any) -> bool:
    """Whether an object is what another process finds under its name."""
    try:
        return operator.attrgetter(obj.__qualname__)(sys.modules[obj.__module__]) is obj
    except (AttributeError, KeyError):
        return False


def spec_of(backend_name: str) -> str | list[str]:
    """What `get_backend` takes for a backend, or a list of them, that messages call so."""
    names = backend_name.split(", ")
    return names[0] if len(names) == 1 else names


@dataclass(frozen=True)
class Named:
    """A function with a backend and a partitioner.

    Attributes:
        name: what messages call the function.
        backend_name, partition_name: what messages call those.
    """

    name: str
    backend: Backend
    backend_name: str
    partition: Partitioner
    partition_name: str

    @property
    def subject(self) -> str:
        return f"{self.name!r} with backend {self.backend_name!r} and partition {self.partition_name!r}"

    def subject_of(self, graphs: Iterable[Graphs]) -> str:
        """The same where these have been compiled: they tell what "auto" was."""
        backends = dict.fromkeys(found.backend for found in graphs)
        return replace(self, backend_name=", ".join(backends)).subject if backends else self.subject

    def compiler_by_name(self, attribute: str, function: Any) -> str | None:
        """How another process gets a graph compiler of the backend; None where it knows none of that name."""
        names, spec = self.backend_name.split(", "), spec_of(self.backend_name)
        is_installed = all(map(BACKENDS.is_installed, names)) and getattr(get_backend(spec), attribute) == function
        return f"aotkit.get_backend({spec!r}).{attribute}" if is_installed or names[0].startswith("dynamo:") else None

    def partitioner_by_name(self) -> str | None:
        """The same for the partitioner."""
        name = self.partition_name
        is_installed = PARTITIONERS.is_installed(name) and get_partitioner(name) == self.partition
        return f"aotkit.get_partitioner({name!r})" if is_installed else None
