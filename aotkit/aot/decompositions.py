"""Tables of decompositions that torch has."""

from collections.abc import Callable, Sequence
from typing import Any

import torch


def core_decompositions(more: Sequence[Any]) -> dict[Any, Callable[..., Any]]:
    """Those into the core set of ATen's operators, and those of `more` operators, which the core set has.

    None of random operators: what they decompose into draws other numbers.
    """
    from torch._decomp import core_aten_decompositions, get_decompositions

    table = {**core_aten_decompositions(), **get_decompositions(more)}
    return {op: f for op, f in table.items() if torch.Tag.nondeterministic_seeded not in op.tags}
