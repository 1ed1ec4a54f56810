"""Save what is compiled for a call, for `aotkit.load` in another process."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from aotkit.capture import DynamoFunction, Entry, Recipe, as_data
from aotkit.errors import UnsupportedError
from aotkit.keep import installed
from aotkit.random import random_state
from aotkit.runtime import Apart
from aotkit.saved import described, integers_of, owner_of, probed, write

NOT_PLAIN = (
    "{!r} cannot be saved for these arguments: {}. What can be saved is one graph of fixed sizes whose results are new "
    "tensors, by a backend that makes data of what it compiles: 'inductor', 'fuser', or both."
)


def save(
    path: str | os.PathLike[str], recipe: Recipe, found: Entry | DynamoFunction, tensors: Sequence[Tensor],
    args: Sequence[Any], kwargs: Mapping[str, Any],
) -> None:  # fmt: skip
    """Write what a call with these arguments runs.

    Args:
        found: what takes such a call.
        tensors: its flat inputs; none where TorchDynamo captures it.

    Raises:
        UnsupportedError: it is more than a graph of the plain case; the message says what.
        OSError: it cannot be written.
    """
    piece, inputs, outputs, result = _once_more(recipe, found, tensors, args, kwargs)
    way = piece.way_in
    if way is None or way.plain is None:
        raise UnsupportedError(NOT_PLAIN.format(recipe.name, way.detour if way else "it runs eagerly"))
    if way.plain.written and not Apart()(inputs):
        raise UnsupportedError(NOT_PLAIN.format(recipe.name, "it changes inputs, and some share memory"))
    if (data := as_data(piece.made, way.plain, {"seeded": piece.seeded})) is None:
        why = f"backend {piece.graphs.backend!r} does not tell what it compiled, or it has constants of its own"
        raise UnsupportedError(NOT_PLAIN.format(recipe.name, why))
    call = described(recipe.fn, args, dict(kwargs), inputs, outputs, result)
    graphs, files = data
    integers = integers_of(inputs)
    content = {
        "name": recipe.name,
        "backend": piece.graphs.backend,
        "machine": installed(),
        "call": call,
        "graphs": graphs,
        "seeded": piece.seeded,
        "integers": integers,
        "probe": probed(way.call, call["layouts"], integers, piece.seeded),
    }
    write(path, content, files)


def _once_more(
    recipe: Recipe, found: Entry | DynamoFunction, tensors: Sequence[Tensor], args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> tuple[Any, Sequence[Any], Sequence[Any], Any]:  # fmt: skip
    """Make the call: the only graph that it runs, the inputs and the outputs of that, and the call's result."""
    with random_state(), _as_before(owner_of(recipe.fn)):
        if isinstance(found, Entry):
            outputs = found.run_graphs([*tensors])
            return found, tensors, outputs, found.rebuild(outputs)
        result, ran = found.recorded(args, kwargs)
    if len(ran.pieces) != 1 or ran.values is None or len(ran.values) != 1:
        raise UnsupportedError(NOT_PLAIN.format(recipe.name, f"it runs {len(ran.pieces)} graphs, or eagerly"))
    ((inputs, outputs),) = ran.values
    return ran.pieces[0], inputs, outputs, result


@contextmanager
def _as_before(owner: nn.Module | None) -> Iterator[None]:
    """Put the values of buffers back, such as running statistics."""
    buffers = [] if owner is None else [*owner.buffers()]
    values = [buffer.clone() for buffer in buffers]
    yield
    with torch.no_grad():
        for buffer, value in zip(buffers, values, strict=True):
            buffer.copy_(value)
