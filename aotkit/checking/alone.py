"""Run what communicates without the other ranks: a check is this process's own, and may take as many runs as it likes.

Each operator that communicates gives what it would if all ranks of its group had the values of this one: in eager and
in what was compiled alike, so that they can be compared, and no rank waits for another.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from aotkit.errors import TraceError
from aotkit.passes import group_argument
from aotkit.torch_private.dispatch import OperatorMode, OpOverload, tree_leaves, tree_map, wrap_others
from aotkit.torch_private.distributed import is_running, size_and_rank


def alone() -> AbstractContextManager[Any]:
    """Nothing is sent, or waited for, under this; where there is one process only, it costs nothing."""
    return Alone() if is_running() else nullcontext()


class Alone(OperatorMode):  # type: ignore[no-untyped-call]
    """Operators that communicate give what they would if all ranks had this one's values."""

    def operator(self, func: Any, types: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if wrap_others(types):  # what they do comes here, too
            return NotImplemented
        is_real = all(kind.__torch_dispatch__ is Tensor.__torch_dispatch__ for kind in types)
        sends = is_real and group_argument(func) is not None
        return _stand_in(func, args, kwargs) if sends else func(*args, **kwargs)


def _stand_in(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What a collective returns, and writes, if all ranks give the same."""
    arguments = func._schema.arguments
    given = dict(zip((a.name for a in arguments), args, strict=False)) | kwargs
    place = group_argument(func)
    assert place is not None
    if arguments[place].name != "group_name":
        raise TraceError(
            f"it calls {func}, which other ranks have to answer, so that it cannot be run for a check alone. Use "
            "torch.distributed's functional collectives, or keep it out by torch.compiler.disable."
        )
    size, rank = size_and_rank(given["group_name"])
    times = size if given.get("reduce_op", given.get("reduceOp")) == "sum" else 1
    written = [t for a in arguments if a.is_write for t in tree_leaves(given[a.name])]
    sources = [t for a in arguments for t in tree_leaves(given.get(a.name)) if isinstance(t, Tensor)]
    sent = [t for t in sources if not any(t is w for w in written)] or sources
    meta = tree_map(lambda x: torch.empty_like(x, device="meta") if isinstance(x, Tensor) else x, (args, kwargs))
    results = func(*meta[0], **meta[1])
    values = [_received(t, like, times, rank) for t, like in zip(sent, tree_leaves(results), strict=True)]
    if written:
        values = [w.copy_(value) for w, value in zip(written, values, strict=True)]
    return values if isinstance(results, list | tuple) else values[0]


def _received(sent: Tensor, like: Tensor, times: int, rank: int) -> Tensor:
    """What fills a tensor of this shape: the same from each rank, or this rank's part of what is sent."""
    flat, count = sent.contiguous().view(-1), like.numel()
    if count < flat.numel():
        first = min(rank * count, flat.numel() - count)
        flat = flat[first : first + count]
    elif count and flat.numel():
        flat = flat.repeat(-(-count // flat.numel()))[:count]
    return flat.new_empty(like.shape, dtype=like.dtype).copy_(flat.view(like.shape) * times)
