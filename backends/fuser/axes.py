"""Axes: the loops that tensors share.

Each dimension of a tensor is a list of axes, the slowest first; one of size 1 has none. An operation on two tensors
makes their axes equal, dimension by dimension; where one tensor has a dimension of 12 and the other came from a view
of (3, 4), the axis of 12 is split. So a view costs nothing, and a broadcast value does not depend on the axis.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from aotkit.errors import CompileError


class Axis:
    """One loop, until it is made equal to another one, or split."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._same: Axis | None = None
        self._parts: tuple[Axis, Axis] | None = None

    def leaves(self) -> list["Axis"]:
        """The axes that it is made of now, the slowest first."""
        if self._same is not None:
            return self._same.leaves()
        if self._parts is not None:
            return [leaf for part in self._parts for leaf in part.leaves()]
        return [self]


Dims = tuple[tuple[Axis, ...], ...]


def fresh(shape: Iterable[int]) -> Dims:
    """New axes for a tensor of this shape."""
    return tuple((Axis(n),) if n != 1 else () for n in shape)


def leaves(axes: Iterable[Axis]) -> list[Axis]:
    return [leaf for axis in axes for leaf in axis.leaves()]


class Conflict(Exception):
    """Two axes of one tensor would become the same."""


class Axes:
    """Makes axes equal; no tensor gets one axis twice."""

    def __init__(self) -> None:
        self._tensors: list[Dims] = []

    def known(self, dims: Dims) -> Dims:
        """Remember the dimensions of a tensor, to hold its axes apart.

        Raises:
            Conflict: it has one axis twice.
        """
        if _repeats(dims):
            raise Conflict
        self._tensors.append(dims)
        return dims

    def unify(self, first: Sequence[Axis], second: Sequence[Axis]) -> None:
        """Make two lists of axes of equal size the same list.

        Raises:
            Conflict: a tensor would have one axis twice; nothing is changed then.
            CompileError: their sizes cannot be split into equal ones.
        """
        with self._all_or_nothing() as changed:
            a, b = leaves(first), leaves(second)
            while a and b:
                x, y = a.pop(), b.pop()
                if x is y:
                    continue
                if x.size == y.size:
                    x._same = y
                    changed.append(x)
                    continue
                large, small, rest = (x, y, a) if x.size > y.size else (y, x, b)
                outer, inner = _split(large, small.size)
                inner._same = small
                changed += [large, inner]
                rest.append(outer)
            if changed and any(_repeats(dims) for dims in self._tensors):
                raise Conflict

    @contextmanager
    def _all_or_nothing(self) -> Iterator[list[Axis]]:
        changed: list[Axis] = []
        try:
            yield changed
        except (Conflict, CompileError):
            for axis in changed:
                axis._same = axis._parts = None
            raise

    def regroup(self, dims: Dims, shape: Sequence[int]) -> Dims:
        """The axes of a tensor, in order, as the dimensions of a view of it.

        Raises:
            CompileError: the new dimensions do not begin and end where axes can be split.
        """
        rest, result = leaves(axis for axes in dims for axis in axes), list[tuple[Axis, ...]]()
        for size in reversed(shape):
            taken: list[Axis] = []
            while (missing := size // math.prod(a.size for a in taken)) > 1:
                axis = rest.pop()
                if axis.size > missing:
                    outer, axis = _split(axis, missing)
                    rest.append(outer)
                elif missing % axis.size:
                    raise CompileError(
                        f"a view of {[math.prod(a.size for a in axes) for axes in dims]} as {list(shape)}"
                    )
                taken.insert(0, axis)
            result.insert(0, tuple(taken))
        return tuple(result)


def _split(axis: Axis, inner: int) -> tuple[Axis, Axis]:
    """Split an axis into an outer one and an inner one of a size."""
    if axis.size % inner:
        raise CompileError(f"an axis of {axis.size} does not split into ones of {inner}")
    axis._parts = Axis(axis.size // inner), Axis(inner)
    return axis._parts


def _repeats(dims: Dims) -> bool:
    found = leaves(axis for axes in dims for axis in axes)
    return len(set(found)) < len(found)
