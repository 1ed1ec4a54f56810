"""An operation on rows, some of them at a time: what graphs have in place of tensors that are too large as a whole."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

aten = torch.ops.aten
Run = Callable[..., Sequence[Tensor]]


class Result(NamedTuple):
    """One result of `in_chunks`.

    Attributes:
        how: "rows": what the body gives for each chunk, one after the other; "sum": added up; "product": products of
            two matrices, added up.
        first: of what the body gives.
        along: rows: the dimension.
        second: product: of what the body gives; or, negative, `-1 - i` of its operands.
        dtype: sum, product: in which it is added up.
    """

    how: Literal["rows", "sum", "product"]
    first: int
    along: int = 0
    second: int = 0
    dtype: torch.dtype | None = None


def in_chunks(
    body: Run,
    last: Run | None,
    groups: int,
    size: int,
    along: Sequence[int | None],
    results: Sequence[Any],
    *operands: Any,
) -> tuple[Tensor, ...]:
    """Call a function of some rows with all of them, `size` groups at a time.

    Args:
        body: of operands, some of their rows each; it gives tensors.
        last: the same for the groups that are left over, if there are any.
        groups: how many there are; each has as many rows.
        along: the dimension of each operand in which its rows are; None: it is the same for all rows.
        results: made of what the body gives, each a `Result`.
    """
    runs = [body, last]
    return tuple(gathered(lambda which, given: runs[which](*given), groups, size, along, results, operands))  # type: ignore[misc]


def gathered(
    run: Callable[[int, list[Any]], Sequence[Tensor]],
    groups: int,
    size: int,
    along: Sequence[int | None],
    results: Sequence[Any],
    operands: Sequence[Any],
) -> list[Tensor]:
    """The results of `in_chunks`.

    Args:
        run: calls the body (0), or that for what is left over (1), with a list, which it may empty.
    """
    found = [_Gathered(Result(*result)) for result in results]
    for count, given in _chunks_of(groups, size, along, operands):
        computed = run(int(count != size), [*given])
        for result in found:
            result.add(computed, given)
        del computed, given
    return [result.value() for result in found]


def _chunks_of(
    groups: int, size: int, along: Sequence[int | None], operands: Sequence[Any]
) -> Iterator[tuple[int, list[Any]]]:
    """How many groups each chunk has, and the operands for it, which are views."""
    rows = [0 if d is None else x.shape[d] // groups for x, d in zip(operands, along, strict=True)]
    for start in range(0, groups, size):
        count = min(size, groups - start)
        cut = zip(operands, along, rows, strict=True)
        yield count, [x if d is None else x.narrow(d, start * n, count * n) for x, d, n in cut]


class _Gathered:
    """One result, as far as there were chunks."""

    def __init__(self, result: Result) -> None:
        self._result = result
        self._rows: list[Tensor] = []
        self._sum: Tensor | None = None

    def add(self, found: Sequence[Tensor], given: Sequence[Tensor]) -> None:
        """What the body gave for a chunk, and what it was given."""
        how, first, _, second, dtype = self._result
        if how == "rows":
            self._rows.append(found[first])
        elif how == "sum":
            self._sum = found[first].to(dtype, copy=True) if self._sum is None else self._sum.add_(found[first])
        else:
            self._multiply(found[first], found[second] if second >= 0 else given[-1 - second], dtype)

    def _multiply(self, a: Tensor, b: Tensor, dtype: torch.dtype | None) -> None:
        if dtype == a.dtype:
            self._sum = torch.mm(a, b) if self._sum is None else self._sum.addmm_(a, b)
        elif not a.is_cuda:  # there are no products in another type
            self._sum = torch.mm(a, b).to(dtype) if self._sum is None else self._sum.add_(torch.mm(a, b))
        elif self._sum is None:
            self._sum = aten.mm.dtype(a, b, dtype)
        else:
            aten.addmm.dtype_out(self._sum, a, b, dtype, out=self._sum)

    def value(self) -> Tensor:
        """When there was the last chunk."""
        if self._result.how == "rows":
            return torch.cat(self._rows, self._result.along)
        assert self._sum is not None
        return self._sum


def bodies_of(node: Node) -> list[GraphModule]:
    """The graph of a chunk; and that for what is left over, if there is any."""
    held: Any = [x for x in node.args[:2] if x is not None]
    return [getattr(node.graph.owning_module, x.target) for x in held]


def is_in_chunks(node: Node) -> bool:
    """Whether a node is such an operation."""
    return node.target is in_chunks
