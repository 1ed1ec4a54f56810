"""Which dimensions of a tensor are its rows, and what an operation is for some of them.

Rows come in groups, of which a chunk has some: of one row each, or one for each sequence, where something is done along
those. In a chunk, the dimensions that are rows are one: of logits of [4, 2048, 32000] the first two; the first one, if
groups are sequences.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

from torch.fx import Node

from aotkit.passes import is_tensor


@dataclass(frozen=True)
class Rows:
    """Dimensions of a tensor that are its rows, one next to the other."""

    first: int
    dims: int = 1

    @property
    def end(self) -> int:
        """The dimension after them."""
        return self.first + self.dims

    def number(self, sizes: Sequence[int]) -> int:
        """How many a tensor has."""
        return prod(sizes[self.first : self.end])

    def part(self, sizes: Sequence[int], groups: int, of: int) -> list[int]:
        """The sizes that a tensor has in a chunk of some of its groups."""
        return [*sizes[: self.first], self.number(sizes) * groups // of, *sizes[self.end :]]

    def dim(self, dim: int, rank: int) -> int:
        """The same dimension in a chunk.

        Raises:
            NotByRows: it is rows.
        """
        dim %= rank
        if self.first <= dim < self.end:
            raise NotByRows
        return dim if dim < self.first else dim - self.dims + 1

    def moved(self, by: int) -> "Rows":
        """As many dimensions, further on."""
        return Rows(self.first + by, self.dims)


class NotByRows(Exception):
    """An operation is nothing that is done for some rows at a time."""


Call = tuple[Any, tuple[Any, ...], dict[str, Any]]  # an operator and its arguments, with the nodes of the graph


@dataclass(frozen=True)
class Step:
    """What an operation is in a chunk.

    Attributes:
        rows: of its result; None: it is over all rows.
        call: of the number of groups.
        operands: the tensors that it reads, and their rows; None: the same for all.
        how: "rows", or what is done over all.
    """

    rows: Rows | None
    call: Callable[[int], Call]
    operands: Mapping[Node, Rows | None] = field(default_factory=dict)
    how: Literal["rows", "sum", "product"] = "rows"


@dataclass(frozen=True)
class Known:
    """What is known when an operation is looked at.

    Attributes:
        rows: of what is computed for each chunk.
        groups: how many there are.
        wanted: the rows of the operation's result, where nothing is known of what it reads.
    """

    rows: Mapping[Node, Rows]
    groups: int
    wanted: Rows | None = None

    def of(self, x: Any) -> Rows:
        """The rows of an operand.

        Raises:
            NotByRows: it is not computed for each chunk.
        """
        if x not in self.rows:
            raise NotByRows
        return self.rows[x]

    def agreed(self, operands: Mapping[Any, Rows | None]) -> Mapping[Any, Rows | None]:
        """Operands, if these are the rows that they have.

        Raises:
            NotByRows: they have others.
        """
        for x, rows in operands.items():
            other = self.rows.get(x, rows) != rows
            if other or not is_fixed(x) or (rows is not None and rows.number(sizes_of(x)) % self.groups):
                raise NotByRows
        return operands


def sizes_of(node: Node) -> list[int]:
    """The sizes of a node's tensor."""
    return [*node.meta["val"].shape]


def is_fixed(node: Any) -> bool:
    """Whether a node's value is one tensor whose sizes are known."""
    return isinstance(node, Node) and is_tensor(node) and all(isinstance(n, int) for n in node.meta["val"].shape)


def plainly(node: Node) -> Callable[[int], Call]:
    """The same operator with the same arguments."""
    return lambda _: (node.target, node.args, dict(node.kwargs))
