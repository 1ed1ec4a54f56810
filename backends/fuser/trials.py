"""Kernels that compute the same, each run by itself: over copies of what they write, so that nobody sees that.

Two of them may add up in another order. How far that may move results, rounding of inputs tells: results that are off
by more than they are with inputs that are a little off are wrong.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

Step = tuple[Callable[..., Any], Sequence[int], Sequence[int]]  # a kernel, places of its arguments, numbers
PIECE = 2**24  # elements that are compared at a time
ROUNDINGS = 128  # that inputs are off by, where these have many digits
FEW_DIGITS = 2**-12


class Trials:
    """Runs of kernels with the same arguments.

    Args:
        first: the one whose results are right.
        values: of a call, by place.
        written: places of those that kernels write.
        parts: places of those of them that are added up along their first dimension; what this gives is a result.
    """

    def __init__(
        self, first: Step, values: Sequence[Any], written: Collection[int], parts: Collection[int] = ()
    ) -> None:
        self._first, self._values, self._parts = first, values, parts
        self._copies = {i: _copy(values[i]) for i in written}
        self.bound(first)()
        self._expected = {i: x.sum(0) if i in parts else _copy(x) for i, x in self._copies.items()}

    @property
    def device(self) -> str:
        """The type of that on which it all is."""
        return next(iter(self._copies.values())).device.type

    def bound(self, step: Step, others: Mapping[int, Any] | None = None) -> Callable[[], Any]:
        """A run of a kernel, which writes to copies alone.

        Args:
            others: values that it reads in the places of those of the call.
        """
        run, arguments, numbers = step
        given = {**(others or {}), **self._copies}
        return partial(run, *(given.get(i, self._values[i]) for i in arguments), *numbers)

    def is_right(self, step: Step) -> bool:
        """Whether a kernel's results are those of the first, to rounding."""
        off = self._off(self.bound(step))
        return not any(off.values()) or all(off[i] <= self._allowed[i] for i in off)

    def _off(self, run: Callable[[], Any]) -> dict[int, float]:
        """How far from the first one's results those of a run are, at most."""
        for i, copy in self._copies.items():
            copy.copy_(self._values[i])
        run()
        found = {i: x.sum(0) if i in self._parts else x for i, x in self._copies.items()}
        return {i: _distance(x, self._expected[i]) for i, x in found.items()}

    @cached_property
    def _allowed(self) -> dict[int, float]:
        """How far rounding may move results."""
        read = {i: self._values[i] for i in self._first[1] if i not in self._copies}
        nudged = {i: _nudged(x) for i, x in read.items() if isinstance(x, Tensor) and x.is_floating_point()}
        off = self._off(self.bound(self._first, nudged))
        return {i: 2 * off[i] + _rounding(x.dtype) * _largest(x) for i, x in self._expected.items()}


def _copy(x: Tensor) -> Tensor:
    """Of the same strides."""
    return _memory(x).clone().as_strided(x.shape, x.stride())


def _memory(x: Tensor) -> Tensor:
    """All from a tensor's first element to its last, also what it leaves out, each once."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.as_strided((extent,), (1,))


def _nudged(x: Tensor) -> Tensor:
    """A copy of which every third element is a little larger."""
    memory = _memory(x).clone()
    memory[::3] *= 1 + _rounding(x.dtype)
    return memory.as_strided(x.shape, x.stride())


def _rounding(dtype: torch.dtype) -> float:
    """How far elements are off, relative to what they are; 0 where nothing is rounded."""
    if not dtype.is_floating_point:
        return 0.0
    eps = torch.finfo(dtype).eps
    return eps if eps > FEW_DIGITS else ROUNDINGS * eps


def _distance(a: Tensor, b: Tensor) -> float:
    most = 0.0
    for x, y in zip(_pieces(a), _pieces(b), strict=True):
        differ = (x != y) & ~((x != x) & (y != y))  # two NaN are the same
        if differ.any():
            off = (x[differ].double() - y[differ].double()).abs()
            most = max(most, off.nan_to_num(nan=torch.inf, posinf=torch.inf).max().item())
    return most


def _largest(x: Tensor) -> float:
    if x.dtype == torch.bool:
        return 1.0
    finite = (piece[piece.isfinite()] for piece in _pieces(x))
    return max((piece.abs().max().item() for piece in finite if piece.numel()), default=0.0)


def _pieces(x: Tensor) -> Sequence[Tensor]:
    if x.numel() <= PIECE:
        return [x]
    longest = max(range(x.dim()), key=x.size)
    return torch.split(x, max(1, PIECE * x.size(longest) // x.numel()), longest)
