"""A compiled graph as backends hand it on: the way to call it, and what tells of it."""

import functools
from collections.abc import Sequence
from typing import Any

from aotkit.backends.inductor_graphs.generated_code import source_of
from aotkit.backends.inductor_graphs.provenance import kernels_of, with_launches
from aotkit.backends.inductor_graphs.short_calls import rewritten_call, short_call
from aotkit.interfaces import Boxed


def called(compiled: Any, are_fixed: bool) -> Boxed:
    """What launches the kernels of a `CompiledFxGraph` from Python.

    Args:
        are_fixed: whether all inputs are tensors of fixed sizes.
    """
    return told(short_call(compiled, are_fixed), compiled, 1)


def told(run: Any, compiled: Any, launch: float) -> Boxed:
    """A call of a `CompiledFxGraph`, as something that tells what it launches.

    Args:
        launch: what one costs the host, in launches from Python.
    """
    run.kernels = lambda inputs: kernels_of(compiled)
    run.launches = lambda: len(kernels_of(compiled)) * launch
    run.source = source_of(compiled)
    run.observed = functools.partial(_observed, compiled)
    return run  # type: ignore[no-any-return]


def _observed(compiled: Any, inputs: list[Any], around: Any) -> Sequence[Any]:
    """Run the graph, each kernel inside of `around`, unless it was compiled in a way that is not known here."""
    names = [kernel.name for kernel in kernels_of(compiled)]
    run = rewritten_call(compiled, functools.partial(with_launches, around=around, names=names))
    return (run or compiled)(inputs)
