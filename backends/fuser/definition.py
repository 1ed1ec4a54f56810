"""Definitions in the form of nvFuser's: operations on tensors in, values over axes out.

`backends/fusion_definition` builds them of graphs. Every dimension and type is known here; nothing is computed.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch

from aotkit.backends.fuser.axes import Axes, Axis, Conflict, Dims, fresh, leaves
from aotkit.backends.fuser.chosen import at, by_index, position
from aotkit.backends.fuser.values import (
    Substitution,
    Value,
    axes_of,
    conjunction,
    index,
    number,
    viewed,
)

TO_BOOLEAN = {"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "logical_not", "logical_and", "logical_or"}


class DataType:
    """The types, by nvFuser's names."""

    Double, Float, Half, BFloat16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
    Int, Int32, Bool = torch.int64, torch.int32, torch.bool


class FusionDefinition:
    """A definition while it is built.

    Attributes:
        inputs: tensors and numbers, in the order in which a call gives them.
        outputs: the results.
        target: what kernels are written for.
        tuning: what measures their schedules; None: nothing does.
    """

    target: Any = None
    tuning: Any = None

    def __init__(self) -> None:
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.ops = Operations()

    def __enter__(self) -> "FusionDefinition":
        return self

    def __exit__(self, *raised: Any) -> None:
        pass

    def define_tensor(
        self, *, sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype, static_sizes: bool, is_cpu: bool
    ) -> Value:
        """An input."""
        number = len(self.inputs)
        kind, data = ("scalar", number) if is_cpu else ("input", (number, tuple(strides)))
        self.inputs.append(Value(kind, dtype, fresh(sizes), data=data))
        return self.inputs[-1]

    def define_scalar(self, number: float, *, dtype: torch.dtype) -> Value:
        """A constant."""
        return Value("constant", dtype, (), data=number)

    def add_output(self, value: Value) -> None:
        self.outputs.append(self.ops.read(value))


class Operations:
    """`fd.ops`."""

    def __init__(self) -> None:
        self._axes = Axes()
        self._loads: dict[int, Value] = {}

    def __getattr__(self, name: str) -> Callable[..., Value]:
        return partial(self._pointwise, name)

    def read(self, value: Value) -> Value:
        """An input as a load."""
        if value.kind != "input":
            return value
        buffer, strides = value.data
        if buffer not in self._loads:
            steps = zip(value.dims, strides, strict=True)
            terms = tuple((axes[0], stride) for axes, stride in steps if axes and stride)
            self._loads[buffer] = self._value("load", value.type, value.dims, data=(buffer, (), terms, 0))
        return self._loads[buffer]

    def _value(self, kind: str, dtype: torch.dtype, dims: Dims, args: Sequence[Value] = (), data: Any = None) -> Value:
        return Value(kind, dtype, self._axes.known(dims), tuple(args), data)

    def _pointwise(self, name: str, *operands: Value) -> Value:
        dtype = torch.bool if name in TO_BOOLEAN else operands[-1].type
        args, dims = self._aligned([self.read(x) for x in operands])
        return self._value("operation", dtype, dims, args, name)

    def _aligned(self, operands: list[Value]) -> tuple[list[Value], Dims]:
        """The operands over common axes, and the dimensions of what is computed of them."""
        dims: Dims = ((),) * max(x.ndim for x in operands)
        aligned: list[Value] = []
        for x in operands:
            try:
                dims = self._together(x, dims)
            except Conflict:  # x and x.T: what the other is computed of is computed anew along axes of its own
                x = self._anew(x)
                dims = self._together(x, dims)
            aligned.append(x)
        return aligned, dims

    def _together(self, x: Value, dims: Dims) -> Dims:
        """The dimensions of what is computed of both."""
        own = ((),) * (len(dims) - x.ndim) + x.dims
        for axes, other in zip(own, dims, strict=True):
            if axes and other:
                self._axes.unify(axes, other)
        return self._axes.known(tuple(other or axes for axes, other in zip(own, dims, strict=True)))

    def _anew(self, x: Value) -> Value:
        return self._substituted(x, {axis: (Axis(axis.size), 0) for axis in axes_of(x)})

    def _substituted(
        self, x: Value, axes: Mapping[Axis, tuple[Axis, int] | Value], guard: Value | None = None
    ) -> Value:
        return Substitution(axes, self._axes.known, guard)(x)

    def cast(self, x: Value, dtype: torch.dtype) -> Value:
        x = self.read(x)
        return self._value("operation", dtype, x.dims, [x], "cast")

    def set(self, x: Value) -> Value:
        return self.read(x)

    def where(self, condition: Value, x: Value, y: Value) -> Value:
        return self._pointwise("where", condition, x, y)

    def stride_order(self, x: Value, order: Sequence[int]) -> Value:
        x = self.read(x)
        return Value(x.kind, x.type, x.dims, x.args, x.data, tuple(order))

    # Shapes.

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        x = self.read(x)
        return viewed(x, self._axes.known(self._axes.regroup(x.dims, shape)))

    def permute(self, x: Value, dims: Sequence[int]) -> Value:
        x = self.read(x)
        return viewed(x, [x.dims[d] for d in dims])

    def squeeze(self, x: Value, dims: Sequence[int]) -> Value:
        x = self.read(x)
        return viewed(x, [axes for d, axes in enumerate(x.dims) if d not in dims])

    def broadcast(self, x: Value, is_new: Sequence[bool]) -> Value:
        x = self.read(x)
        old = iter(x.dims)
        return viewed(x, [() if new else next(old) for new in is_new])

    def broadcast_in_dim(self, x: Value, shape: Sequence[int], places: Sequence[int]) -> Value:
        x = self.read(x)
        dims = list(fresh(shape))
        for axes, place in zip(x.dims, places, strict=True):
            if axes:
                dims[place] = axes
        return viewed(x, self._axes.known(tuple(dims)))

    def slice(self, x: Value, starts: Sequence[int], ends: Sequence[int]) -> Value:
        x = self.read(x)
        for d, (start, end, size) in enumerate(zip(starts, ends, x.shape, strict=True)):
            if end - start == size:
                continue
            x = self._part(x, d, start, end)
        return x

    def _part(self, x: Value, dim: int, start: int, end: int) -> Value:
        """A part of a dimension: of its outermost axis, or of what is within one position of that."""
        outer, *inner = leaves(x.dims[dim])
        size = math.prod(a.size for a in inner)
        first, last = start // size, -(-end // size)
        if last - first > 1 and (start % size or end % size):
            axis = Axis(end - start)
            found = at(x, {(outer, *inner): position(axis, start)}, self._axes.known)
            return self._with_axes(found, x, dim, [axis])
        axis = Axis(last - first)
        x = self._substituted(x, {outer: (axis, first)})
        kept = (axis, *inner) if axis.size > 1 else inner
        x = viewed(x, [kept if i == dim else axes for i, axes in enumerate(x.dims)])
        start, end = start - first * size, end - first * size
        return x if (start, end) == (0, axis.size * size) else self._part(x, dim, start, end)

    def _with_axes(self, x: Value, like: Value, dim: int, axes: Sequence[Axis]) -> Value:
        """With the dimensions of another one, of which one has these axes."""
        return self._told(x, [axes if d == dim else old for d, old in enumerate(like.dims)])

    def cat(self, parts: Sequence[Value], dim: int) -> Value:
        parts = [self.read(x) for x in parts]
        ends = list(accumulate(x.shape[dim] for x in parts))
        step = self._step(parts, dim, ends)
        axis = Axis(ends[-1] // step)
        starts = [0, *ends]
        pieces = [self._placed(x, dim, axis, start, step) for x, start in zip(parts, starts, strict=False)]
        found = pieces.pop()
        for piece, end in reversed(list(zip(pieces, ends, strict=False))):
            test = self._pointwise("lt", index(axis), number(end // step, torch.int64))
            found = self.where(self._along(test, found, dim), piece, found)
        return found

    def take(self, x: Value, indices: Mapping[int, Value], place: int) -> Value:
        """`x` where dimensions have these indices, of one shape, whose dimensions are at a place among the others.

        What it is where an index is out of range is not told.
        """
        x, (first, *others) = self._anew(self.read(x)), [self.read(i) for i in indices.values()]
        given, dims = self._aligned([first, *others])
        found = by_index(x, dict(zip(indices, given, strict=True)), self._axes.known)
        kept = [axes for d, axes in enumerate(x.dims) if d not in indices]
        return self._told(found, [*kept[:place], *dims, *kept[place:]])

    def take_along(self, x: Value, indices: Value, dim: int) -> Value:
        """`x` where a dimension has indices that are others for each position along the others."""
        x, indices = self._anew(self.read(x)), self.read(indices)
        for d, (axes, other) in enumerate(zip(x.dims, indices.dims, strict=True)):
            if d != dim and axes:
                self._axes.unify(axes, other)
        return self._told(by_index(x, {dim: indices}, self._axes.known), indices.dims)

    def _told(self, x: Value, dims: Sequence[Sequence[Axis]]) -> Value:
        found = viewed(x, dims)
        self._axes.known(found.dims)
        return found

    def pad(self, x: Value, widths: Sequence[int], filler: Value) -> Value:
        x = self.read(x)
        for i in range(0, len(widths), 2):
            d, (low, high) = x.ndim - 1 - i // 2, widths[i : i + 2]
            if not low and not high:
                continue
            size = x.shape[d]
            step = self._step([x], d, [low, size, high])
            axis = Axis((low + size + high) // step)
            piece = self._placed(x, d, axis, low, step)
            inside = self._inside(axis, low // step, (low + size) // step)
            x = self.where(self._along(inside, piece, d), piece, filler)
        return x

    def _step(self, parts: Sequence[Value], dim: int, places: Sequence[int]) -> int:
        """How many elements the axis along which parts are placed steps over: those of the inner axes of a part.

        One, where a part does not begin or end there.
        """
        inner = max(math.prod(a.size for a in leaves(x.dims[dim])[1:]) for x in parts)
        return 1 if any(place % inner for place in places) else inner

    def _placed(self, x: Value, dim: int, axis: Axis, start: int, step: int) -> Value:
        """A tensor as a part of a longer axis, of values that are read nowhere else."""
        size = x.shape[dim] // step
        ((*outer,), inner) = self._axes.regroup((x.dims[dim],), (size, step))
        first, moved = start // step, x
        if outer:
            guard, (one, *more) = self._inside(axis, first, first + size), leaves(outer)
            if more:
                moved = at(x, {(one, *more): position(axis, -first)}, self._axes.known, guard)
            else:
                moved = self._substituted(x, {one: (axis, -first)}, guard)
        return self._with_axes(moved, x, dim, (axis, *inner))

    def _inside(self, axis: Axis, start: int, end: int) -> Value:
        at = index(axis)
        bounds = [(name, n) for name, n in (("ge", start), ("lt", end)) if 0 < n < axis.size]
        tests = [self._pointwise(name, at, number(n, torch.int64)) for name, n in bounds]
        return conjunction(tests) if tests else viewed(Value("constant", torch.bool, (), data=True), [(axis,)])

    def _along(self, test: Value, like: Value, dim: int) -> Value:
        """A test of positions along the outermost axis of a dimension, as a tensor with the axes of that dimension."""
        return viewed(test, [like.dims[dim] if d == dim else () for d in range(like.ndim)])

    def full(self, shape: Sequence[int], number: Value, dtype: torch.dtype) -> Value:
        return self._value("constant", dtype, fresh(shape), data=number.data)

    def iota(self, length: Value, start: Value, step: Value, dtype: torch.dtype) -> Value:
        (axes,) = fresh([length.data])
        if not axes:
            return Value("constant", dtype, ((),), data=start.data)
        found = index(axes[0], start.data, step.data, dtype)
        self._axes.known(found.dims)
        return found

    # Reductions.

    def sum(self, x: Value, dims: Sequence[int], keepdim: bool) -> Value:
        return self._reduction("sum", x, dims, keepdim)

    def prod(self, x: Value, dims: Sequence[int], keepdim: bool) -> Value:
        return self._reduction("prod", x, dims, keepdim)

    def max(self, x: Value, dims: Sequence[int], keepdim: bool) -> Value:
        return self._reduction("max", x, dims, keepdim)

    def min(self, x: Value, dims: Sequence[int], keepdim: bool) -> Value:
        return self._reduction("min", x, dims, keepdim)

    def var_mean(self, x: Value, dims: Sequence[int], correction: int, keepdim: bool) -> tuple[Value, Value]:
        """In two passes over the values: the mean, then the squares of what is left."""
        x = self.read(x)
        count = math.prod(x.shape[d] for d in dims)
        mean = self._pointwise("truediv", self._reduction("sum", x, dims, True), number(float(count), x.type))
        rest = self._pointwise("sub", x, mean)
        squares = self._reduction("sum", self._pointwise("mul", rest, rest), dims, keepdim)
        var = self._pointwise("truediv", squares, number(float(count - correction), x.type))
        return var, mean if keepdim else self.squeeze(mean, list(dims))

    def var(self, x: Value, dims: Sequence[int], correction: int, keepdim: bool) -> Value:
        return self.var_mean(x, dims, correction, keepdim)[0]

    def _reduction(self, name: str, x: Value, dims: Sequence[int], keepdim: bool) -> Value:
        x = self.read(x)
        axes = tuple(a for d in dims for a in x.dims[d])
        kept = tuple(() if d in dims else a for d, a in enumerate(x.dims) if keepdim or d not in dims)
        found = self._value("reduction", x.type, kept, [x], (name, axes))
        return found if axes else viewed(x, kept)
