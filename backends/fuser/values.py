"""What a definition is made of while it is built: values over axes that may still be split or made equal."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import torch

from aotkit.backends.fuser.axes import Axis, Dims, leaves

Affine = tuple[tuple[Axis, int], ...]  # the sum of axis * stride


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor.

    Attributes:
        kind: "input" (data: its number and strides), "scalar" (its number; a number on the CPU), "constant" (data: the
            number), "load" (data: the number of an input, strides of positions that are values, strides by axis,
            offset; args: those positions, then where it may be read, if not everywhere), "index" (data: strides by
            axis, offset), "operation" (data: its name), "reduction" (data: its name and axes).
        order: the strides that it should have as a result: for each dimension, its rank from the innermost.
    """

    kind: str
    type: torch.dtype
    dims: Dims
    args: tuple["Value", ...] = ()
    data: Any = None
    order: tuple[int, ...] | None = None

    def dtype(self) -> torch.dtype:
        return self.type

    @property
    def ndim(self) -> int:
        return len(self.dims)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(math.prod(axis.size for axis in axes) for axes in self.dims)


class Computed(Protocol):
    """What is computed of others of its kind."""

    @property
    def args(self) -> tuple[Any, ...]: ...


C = TypeVar("C", bound=Computed)


def below(values: Iterable[C]) -> Iterator[C]:
    """All that these are computed of, and these, each after its operands."""
    seen: set[C] = set()
    pending = [(value, False) for value in reversed(list(values))]
    while pending:
        value, ready = pending.pop()
        if ready:
            yield value
        elif value not in seen:
            seen.add(value)
            pending.append((value, True))
            pending += [(x, False) for x in reversed(value.args)]


def viewed(value: Value, dims: Sequence[Sequence[Axis]]) -> Value:
    """The same values with other dimensions."""
    return replace(value, dims=tuple(map(tuple, dims)), order=None)


def index(axis: Axis, offset: int = 0, step: int = 1, dtype: torch.dtype = torch.int64) -> Value:
    """The position along an axis, as a tensor of one dimension."""
    return Value("index", dtype, ((axis,),), data=(((axis, step),), offset))


class Substitution:
    """Values anew, in which axes are others: `axis` becomes `new + offset`, or a position that is a value.

    Of values along such a position, the dimensions are not told.

    Args:
        known: remembers the dimensions of each new value, so that its axes stay apart.
        guard: where the new values may be read; None: everywhere.
    """

    def __init__(
        self,
        axes: Mapping[Axis, tuple[Axis, int] | Value],
        known: Callable[[Dims], Dims],
        guard: Value | None = None,
    ) -> None:
        self._all, self._known, self._guard = axes, known, guard
        self._axes = {old: to for old, to in axes.items() if not isinstance(to, Value)}
        self._positions = {old: to for old, to in axes.items() if isinstance(to, Value)}
        is_same = all(to.size == old.size and not by for old, (to, by) in self._axes.items())
        self._renames = guard is None and is_same and not self._positions
        self._done: dict[Value, Value] = {}

    def __call__(self, value: Value) -> Value:
        if value not in self._done:
            self._done[value] = self._new(value)
        return self._done[value]

    def _new(self, value: Value) -> Value:
        if value.kind == "reduction":
            name, axes = value.data
            bound = {a for a in leaves(axes) if a in self._all}
            if bound and not self._renames:  # those are of the reduction's own
                rest = {a: new for a, new in self._all.items() if a not in bound}
                args = tuple(map(Substitution(rest, self._known, self._guard), value.args)) if rest else value.args
                return replace(value, args=args, dims=self._dims(value.dims), order=None)
            data: Any = name, self._list(axes)
        elif value.kind == "load":
            return self._load(value)
        elif value.kind == "index":
            *_, strides, _ = value.data
            found = replace(value, data=self._affine(value.data), dims=self._dims(value.dims), order=None)
            for position, step in self._chosen(strides):
                term = combined("mul", converted(position, value.type), number(step, value.type))
                found = combined("add", found, term)
            return found
        else:
            data = value.data
        args = tuple(map(self, value.args))
        return replace(value, args=args, data=data, dims=self._dims(value.dims), order=None)

    def _load(self, value: Value) -> Value:
        buffer, steps, *rest = self._affine(value.data)
        args, chosen = tuple(map(self, value.args)), self._chosen(value.data[-2])
        positions, guards = [*args[: len(steps)], *(p for p, _ in chosen)], [*args[len(steps) :]]
        data = buffer, (*steps, *(step for _, step in chosen)), *rest
        if self._guard is not None and (data != value.data or args != value.args):
            guards = [conjunction([*guards, self._guard])]
        return replace(value, args=(*positions, *guards), data=data, dims=self._dims(value.dims), order=None)

    def _chosen(self, strides: Affine) -> list[tuple[Value, int]]:
        """The positions along axes of a sum, and their strides."""
        return [(self._positions[axis], stride) for axis, stride in spread(strides) if axis in self._positions]

    def _dims(self, dims: Dims) -> Dims:
        if any(axis in self._positions for axes in dims for axis in leaves(axes)):
            return ()
        return self._known(tuple(map(self._list, dims)))

    def _list(self, axes: Iterable[Axis]) -> tuple[Axis, ...]:
        return tuple(self._axes[a][0] if a in self._axes else a for a in leaves(axes))

    def _affine(self, data: Any) -> Any:
        *rest, strides, offset = data
        terms = spread(strides)
        if not any(axis in self._all for axis, _ in terms):
            return data
        new = []
        for axis, stride in terms:
            if axis in self._positions:
                continue
            to, shift = self._axes.get(axis, (axis, 0))
            new.append((to, stride))
            offset += shift * stride
        return *rest, tuple(new), offset


def axes_of(value: Value) -> set[Axis]:
    """All axes of a value and of what it is computed of, also those that reductions have for themselves."""
    found: set[Axis] = set()
    for v in below([value]):
        own = v.data[1] if v.kind == "reduction" else [a for a, _ in v.data[-2]] if v.kind in ("load", "index") else ()
        found.update(leaves([*own, *(axis for axes in v.dims for axis in axes)]))
    return found


def spread(strides: Affine) -> Affine:
    """The same sum over the axes that those are made of now."""
    result = []
    for axis, stride in strides:
        for leaf in reversed(axis.leaves()):
            if leaf.size > 1:
                result.append((leaf, stride))
            stride *= leaf.size
    return tuple(result)


def conjunction(conditions: Sequence[Value]) -> Value:
    """Where all of them hold."""
    found = conditions[0]
    for other in conditions[1:]:
        found = Value("operation", torch.bool, found.dims or other.dims, (found, other), "logical_and")
    return found


def number(n: float, dtype: torch.dtype) -> Value:
    """A constant."""
    return Value("constant", dtype, (), data=n)


def combined(name: str, x: Value, y: Value) -> Value:
    """An operation on values of one type, at whatever positions they are."""
    return Value("operation", x.type, x.dims or y.dims, (x, y), name)


def converted(x: Value, dtype: torch.dtype) -> Value:
    return x if x.type is dtype else Value("operation", dtype, x.dims, (x,), "cast")
