"""Run a function in float64 although its code, or a captured graph, names narrower types."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from aotkit.torch_private.dispatch import OperatorMode, tree_leaves, tree_map

WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}
# They read the bits of values, which are others in float64.
BITWISE = frozenset({torch.ops.aten.view.dtype})


class Widened(OperatorMode):  # type: ignore[no-untyped-call]
    """Operators that are told to make a narrower type make float64, and take nothing narrower beside it.

    Random operators are left alone: in another type they would draw other numbers.
    """

    def operator(self, func: Any, types: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if func in BITWISE or torch.Tag.nondeterministic_seeded in func.tags:
            return func(*args, **kwargs)
        args, kwargs = tree_map(_wide_type, args), tree_map(_wide_type, kwargs)
        if not func._schema.is_mutable and len(_floating_types((args, kwargs))) > 1:
            args, kwargs = tree_map(_wide_values, args), tree_map(_wide_values, kwargs)
        return func(*args, **kwargs)


def _floating_types(values: Any) -> set[torch.dtype]:
    return {t.dtype for t in tree_leaves(values) if isinstance(t, Tensor) and t.is_floating_point()}


def _wide_type(value: Any) -> Any:
    return WIDE.get(value, value) if isinstance(value, torch.dtype) else value


def _wide_values(value: Any) -> Any:
    return value.to(WIDE[value.dtype]) if isinstance(value, Tensor) and value.dtype in WIDE else value


class SameDraws(OperatorMode):  # type: ignore[no-untyped-call]
    """Random operators draw in float64 the numbers that they would draw in `dtype`."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def operator(self, func: Any, types: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
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
