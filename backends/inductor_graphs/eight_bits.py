"""What Inductor computes wrongly of 8-bit integers, under torch 2.11 to 2.14 at least.

Its vectors of them on a CPU are filled in part, and the zeros in the rest take part in extrema: the least of positive
numbers, or the largest of negative ones, is 0 (pytorch/pytorch#191499). On a GPU the index of an extremum is that of
any of several equal ones, where torch has the first's. And whether any of uint8 is not 0 comes as bool, where torch has
uint8.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
EXTREMA = (
    aten.amin.default, aten.amax.default, aten.min.default, aten.max.default, aten.min.dim, aten.max.dim,
    aten.argmin.default, aten.argmax.default, aten.aminmax.default,
)  # fmt: skip
ANY = (aten.any.default, aten.any.dim, aten.any.dims)


def with_right_bytes(decompositions: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """The same table, where extrema of 8-bit integers are computed in 32 bits, and `any` of uint8 in bool."""
    table = dict(decompositions)
    for op in EXTREMA:
        table[op] = _in(torch.int32, _is_narrow, op, table.get(op, _leave))
    for op in ANY:
        table[op] = _in(torch.bool, _is_uint8, op, table.get(op, _leave))
    return table


def _leave(*args: Any, **kwargs: Any) -> Any:
    return NotImplemented


def _is_narrow(x: Tensor) -> bool:
    return x.dtype in (torch.int8, torch.uint8)


def _is_uint8(x: Tensor) -> bool:
    return x.dtype == torch.uint8


def _in(
    dtype: torch.dtype, affects: Callable[[Tensor], bool], op: Callable[..., Any], otherwise: Callable[..., Any]
) -> Callable[..., Any]:
    def decomposed(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not affects(x):
            return otherwise(x, *args, **kwargs)
        found = op(x.to(dtype), *args, **kwargs)
        parts = [part.to(x.dtype) if part.dtype == dtype else part for part in _parts(found)]  # others are indices
        return parts[0] if isinstance(found, Tensor) else tuple(parts)

    return decomposed


def _parts(found: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (found,) if isinstance(found, Tensor) else found
