"""What is at positions that are values: a part of a dimension that does not end where its axes do, rows by index."""

from collections.abc import Callable, Mapping

import torch

from aotkit.backends.fuser.axes import Axis, Dims, leaves
from aotkit.backends.fuser.values import (
    Substitution,
    Value,
    axes_of,
    below,
    combined,
    conjunction,
    converted,
    index,
    number,
    spread,
)
from aotkit.errors import CompileError

Known = Callable[[Dims], Dims]
MOST = 2**31  # elements, up to which positions have 32 bits


def at(x: Value, positions: Mapping[tuple[Axis, ...], Value], known: Known, guard: Value | None = None) -> Value:
    """A tensor at a position for each of some dimensions, which are axes that follow each other; its own are not told.

    Args:
        guard: where it may be read; None: everywhere.

    Raises:
        CompileError: a reduction that is one value for several axes of a dimension would be computed anew for each.
    """
    for axes in positions:
        for v in below([x]):
            rows = (axes_of(v) - {*leaves(v.data[1])}) & {*axes} if v.kind == "reduction" else ()
            if 0 < len(rows) < len(axes):
                raise CompileError(
                    f"a part of a dimension of {[a.size for a in axes]}, and a reduction along one of them"
                )
    chosen: dict[Axis, tuple[Axis, int] | Value] = {}
    for axes, position in positions.items():
        for axis in reversed(axes[1:]):
            size = number(axis.size, position.type)
            before = combined("div", position, size)
            chosen[axis] = combined("sub", position, combined("mul", before, size))
            position = before
        chosen[axes[0]] = position
    return Substitution(chosen, known, guard)(x)


def position(axis: Axis, start: int) -> Value:
    """That along an axis, of as few bits as it takes: it is divided."""
    return index(axis, start, dtype=torch.int32 if axis.size + abs(start) < MOST else torch.int64)


def by_index(x: Value, indices: Mapping[int, Value], known: Known) -> Value:
    """A tensor where dimensions have these indices; whatever it is where one of them is out of range. Its own
    dimensions are not told.

    Raises:
        CompileError: it would compute a reduction anew for each index.
    """
    if any(v.kind == "reduction" for v in below([x])):
        raise CompileError("elements by index of what a reduction is a part of")
    dtype = torch.int32 if _reach(x) < MOST else torch.int64
    tests, positions = list[Value](), dict[tuple[Axis, ...], Value]()
    for dim, given in indices.items():
        size = number(x.shape[dim], given.type)
        tests += [_test("ge", given, number(0, given.type)), _test("lt", given, size)]
        if axes := tuple(leaves(x.dims[dim])):
            positions[axes] = converted(given, dtype)
    return at(x, positions, known, conjunction(tests))


def _test(name: str, x: Value, y: Value) -> Value:
    return Value("operation", torch.bool, x.dims, (x, y), name)


def _reach(x: Value) -> int:
    """How far from their beginning the inputs that it is computed of are read, in elements."""
    loads = [v.data for v in below([x]) if v.kind == "load"]
    return max([abs(at) + sum(a.size * abs(step) for a, step in spread(terms)) for *_, terms, at in loads], default=0)
