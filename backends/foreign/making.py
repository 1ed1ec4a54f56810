"""A compiler from elsewhere as an aotkit backend."""

from collections.abc import Callable, Mapping
from typing import Any

from aotkit.backends.foreign.decompositions import decompositions
from aotkit.backends.foreign.graphs import Build, compiling
from aotkit.backends.foreign.operators import declining
from aotkit.backends.foreign.packages import missing
from aotkit.interfaces import Backend, always_available


def foreign_backend(
    name: str,
    build: Build,
    packages: Mapping[str, str],
    lacks: Mapping[Any, str] | None = None,
    devices: Mapping[str, Callable[[], str | None]] | None = None,
) -> Backend:
    """A backend that gets regions of pointwise operators, reductions and views; libraries do the rest.

    Args:
        name: of the compiler, as messages have it.
        build: compiles a graph: see `compiling`.
        packages: modules that it imports -> what pip calls their packages.
        lacks: an operator, a dtype, or a pair of both -> why the compiler does not take it.
        devices: type of device -> why the compiler cannot use one here, or None. Without: on the CPU alone.
    """
    return Backend(
        fw_compiler=compiling(build),
        decompositions=decompositions,
        fixed_sizes=True,
        declines=declining(name, lacks or {}, devices or {"cpu": always_available}),
        unavailable=missing(packages),
    )
