"""Memory that a function takes and does not write: what is in it is anybody's guess."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from aotkit.torch_private.dispatch import OperatorMode, tree_leaves

aten = torch.ops.aten
UNWRITTEN = frozenset(
    getattr(packet, overload)
    for packet in (
        aten.empty,
        aten.empty_like,
        aten.empty_strided,
        aten.empty_permuted,
        aten.new_empty,
        aten.new_empty_strided,
    )
    for overload in packet.overloads()  # type: ignore[no-untyped-call]
    if overload not in ("out", "names")
)


class Filled(OperatorMode):  # type: ignore[no-untyped-call]
    """New memory holds a number from the start.

    Attributes:
        took: whether the function took any memory without values.
    """

    def __init__(self, floating: float, other: int) -> None:
        """Set up.

        Args:
            floating: the number for floating-point and complex types.
            other: for all others.
        """
        super().__init__()
        self._floating, self._other = floating, other
        self.took = False

    def operator(self, func: Any, types: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if func not in UNWRITTEN:
            return result
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.layout is torch.strided and tensor.numel():
                self.took = True
                tensor.fill_(self._floating if tensor.is_floating_point() or tensor.is_complex() else self._other)
        return result
