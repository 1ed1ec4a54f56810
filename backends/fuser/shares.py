"""Rows that several programs share.

Of a variance, each program finds the squares around a mean of its own, in one walk; from those follow the squares
around one mean: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances",
1979.
"""

import torch

from aotkit.backends.fuser import limits
from aotkit.backends.fuser.dependence import contiguous
from aotkit.backends.fuser.kernels import Kernel
from aotkit.backends.fuser.loops import Loops, Node
from aotkit.backends.fuser.values import below


def shares(loops: Loops, reduction: Node, domain: frozenset[int], over: frozenset[int], fed_back: bool) -> int:
    """How many programs share a row: enough to fill a GPU, each with at least 4096 elements."""
    rows, length, nearest = loops.size(domain - over), loops.size(over), _nearest(loops, reduction)
    together = min(64, loops.sizes[nearest]) if nearest in domain - over else 1  # rows that are one program's
    programs, least = max(1, rows // together), 1
    if length <= limits.SHORT_COLUMN or loops.size(domain) <= limits.ONE_PROGRAM:
        return 1
    if fed_back:
        enough = limits.FEWEST_ROWS
        if reduction.data[0] == "sum" and length > limits.VERY_LONG_ROW:  # so are the squares, in the same walk
            enough = limits.PROGRAMS
        if nearest in over and loops.sizes[nearest] < limits.INTERLEAVED and length > limits.LONGEST_WHOLE_ROW:
            least = limits.SHARES_OF_INTERLEAVED
        elif programs >= enough or (together == 1 and length <= limits.SHORT_ROW):
            return 1
    return max(least, min(limits.PROGRAMS // programs, length * together // 4096))


def unit(loops: Loops, reduction: Node, over: frozenset[int]) -> int:
    """Of how many elements a program's share is a multiple; a tile of a column is short."""
    return limits.SHARED_CHUNK if _nearest(loops, reduction) in over else limits.SHARED_COLUMN


def _nearest(loops: Loops, reduction: Node) -> int | None:
    """The axis along which the largest tensor that it reads has its neighbours."""
    loads = [n for n in below([reduction]) if n.kind == "load" and n.data[-2]]
    widest = max(loads, key=lambda n: loops.size(n.axes), default=None)
    return None if widest is None else contiguous(widest.data[-2])


def elements_of_part(loops: Loops, kernel: Kernel, dtype: torch.dtype) -> Node:
    """How many elements of a row each program has."""
    assert kernel.partial_axis is not None
    length = loops.size(kernel.inner or ())
    left = loops.node("index", torch.int64, (), (((kernel.partial_axis, -kernel.share),), length))
    count = loops.operation("minimum", left, loops.constant(kernel.share, torch.int64))
    return loops.node("operation", dtype, (count,), "cast")


def own_squares(loops: Loops, first: Node, count: Node) -> Node:
    """The squares around a program's own mean; `first` is the sum that it finds."""
    rest = loops.operation("sub", first.args[0], loops.operation("truediv", first, count))
    return loops.node("reduction", first.type, (loops.operation("mul", rest, rest),), first.data)


def around_one_center(loops: Loops, squares: Node, sums: Node, count: Node, center: Node) -> Node:
    """What each program's squares are around one center, from its squares around its own."""
    off = loops.operation("sub", loops.operation("truediv", sums, count), center)
    return loops.operation("add", squares, loops.operation("mul", count, loops.operation("mul", off, off)))
