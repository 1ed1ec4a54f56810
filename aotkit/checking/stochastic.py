"""Stochastic arithmetic: run a function as if its operators rounded otherwise than they do.

Which digits of a result rounding decides is what changes from one such run to the next. Source: D. S. Parker, "Monte
Carlo Arithmetic", UCLA CSD-970002, 1997.
"""

import functools
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from aotkit.checking.precision import operand_eps
from aotkit.torch_private.dispatch import OperatorMode, tree_leaves, tree_map

TYPES = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128}
# Operators may be missing in float64, such as conversions to it.
LOOK_AHEAD = 8
# The standard deviation of what rounding to nearest leaves, in units in the last place.
HALF_UNIT = 0.3
SMALLEST = 2.0**-24  # number of float16
Types = list[tuple[Any, list[torch.dtype]]]
Exactness = list[tuple[Any, bool]]


class ResultTypes(OperatorMode):  # type: ignore[no-untyped-call]
    """Keeps the types of what operators return.

    Attributes:
        types: each operator that ran, with the types of the tensors that it returned.
    """

    def __init__(self) -> None:
        super().__init__()
        self.types: Types = []

    def operator(self, func: Any, types: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        results = func(*args, **kwargs)
        self.types.append((func, [t.dtype for t in tree_leaves(results) if isinstance(t, Tensor)]))
        return results


class StochasticArithmetic(OperatorMode):  # type: ignore[no-untyped-call]
    """Operators take and give what is off by random amounts, unless their results are exact.

    So what depends only on values that were never rounded stays as it is: a comparison or the rounding of an input.
    """

    def __init__(
        self, types: Types, amount: Callable[[torch.dtype], float], seed: int, exactness: Exactness | None = None
    ) -> None:
        """Set up.

        Args:
            types: of the results of the same operators in the run whose rounding is meant; this one is in float64.
            amount: the standard deviation of the relative amounts, for a type.
            seed: of the amounts.
            exactness: each operator that ran before, and whether its results were exact; filled in the first run. To
                find out takes as long as the operator itself.
        """
        super().__init__()
        self._types = types
        self._next = 0
        self._narrow: torch.dtype = torch.float64
        self._amount = amount
        self._seed = seed
        self._exactness: Exactness = [] if exactness is None else exactness
        self._is_first = not self._exactness
        self._ran = 0
        # By how many of its smallest numbers all values of a run are moved in float16, as if all were rounded up, or
        # down: it loses the many small gradients of one sign, and not the few large ones of the other.
        self._bias = random.Random(seed).uniform(-1.0, 1.0)
        self._generators: dict[torch.device, torch.Generator] = {}

    def operator(self, func: Any, types: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        self._narrow = self._next_type(func)
        if func.is_view or torch.Tag.nondeterministic_seeded in func.tags:
            return func(*args, **kwargs)
        exact = self._known(func)
        if exact is not False or func._schema.is_mutable:
            results = func(*args, **kwargs)
            if exact is None:
                exact = all(self._is_exact(result) for result in tree_leaves(results))
                if self._is_first:
                    self._exactness.append((func, exact))
            if exact:
                return results
        if func._schema.is_mutable:
            for tensor in tree_leaves(results):
                if isinstance(tensor, Tensor):
                    tensor.copy_(self._moved(tensor))
            return results
        given = functools.partial(self._moved, func=func)
        return tree_map(self._moved, func(*tree_map(given, args), **tree_map(given, kwargs)))

    def _known(self, func: Any) -> bool | None:
        """Whether the results of the next operator were exact in an earlier run; None if there was none like it."""
        at, self._ran = self._ran, self._ran + 1
        if self._is_first or at >= len(self._exactness) or self._exactness[at][0] is not func:
            return None
        return self._exactness[at][1]

    def _next_type(self, func: Any) -> torch.dtype:
        """The narrowest type among the results that an operator had; that of the operator before, where it had none."""
        for i, (known, types) in enumerate(self._types[self._next : self._next + LOOK_AHEAD], self._next + 1):
            if known is func:
                self._next = i
                return min((t.to_real() for t in types if t in TYPES), key=_digits, default=self._narrow)
        return self._narrow

    def _is_exact(self, value: Any) -> bool:
        """Whether a result need not have been rounded: the narrow type holds it, or it is integral."""
        if not _is_rounded(value):
            return True
        if value.is_complex():
            return self._is_exact(torch.view_as_real(value.resolve_conj()))
        narrow = self._narrow_of(value)
        unrounded = value.round() if narrow is value.dtype else value.to(narrow).to(value.dtype)
        return bool(((value == unrounded) | ~value.isfinite()).all())

    def _moved(self, value: Any, func: Any = None) -> Any:
        """Off by random amounts; again values of the narrow type, so that what copies them is exact.

        Args:
            func: the operator that reads the value, perhaps fewer of its digits than there are.
        """
        if not _is_rounded(value):
            return value
        if value.is_complex():
            return torch.view_as_complex(self._moved(torch.view_as_real(value.resolve_conj()), func))
        generator = self._generators.get(value.device)
        if generator is None:
            generator = self._generators[value.device] = torch.Generator(value.device).manual_seed(self._seed)
        narrow = self._narrow_of(value)
        noise = torch.empty_like(value, dtype=torch.float32).normal_(generator=generator)
        amount = self._amount(narrow)
        if func is not None and narrow is torch.float32:
            amount = max(amount, HALF_UNIT * operand_eps(func, value.device))
        moved = value + value * (amount * noise)  # which float32 holds also of float64, as it does not 1 and that
        if narrow is torch.float16:  # other types hardly have values so small
            moved = moved + self._bias * SMALLEST * (value != 0)
        moved = moved.to(narrow).to(value.dtype)
        return torch.where(moved.isfinite(), moved, value)

    def _narrow_of(self, value: Tensor) -> torch.dtype:
        return self._narrow if value.dtype is torch.float64 else value.dtype


def _digits(dtype: torch.dtype) -> float:
    return -torch.finfo(dtype).eps


def _is_rounded(value: Any) -> bool:
    """Whether arithmetic rounds such values."""
    return isinstance(value, Tensor) and value.dtype in TYPES
