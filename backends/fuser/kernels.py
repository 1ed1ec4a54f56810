"""What a kernel is: what it walks, what it computes on its way, and what it writes."""

from dataclasses import dataclass, field

import torch

from aotkit.backends.fuser.loops import Node, Result, Strides
from aotkit.backends.fuser.values import below

COMPUTING = ("operation", "reduction")
PLAIN = {"add", "sub", "mul", "truediv", "neg", "cast", "where", "lt", "le", "gt", "ge", "eq", "ne"}
MOST_NAMES = 5


@dataclass(frozen=True)
class Store:
    """A value that a kernel writes to a buffer, or to a piece of one."""

    node: Node
    buffer: int
    axes: Strides
    offset: int = 0
    is_piece: bool = False


@dataclass(frozen=True)
class Partial(Store):
    """A reduction of which each program writes its part.

    Attributes:
        of: the reduction that it is a part of.
    """

    of: Node = field(kw_only=True)


@dataclass(eq=False)
class Kernel:
    """One loop nest.

    Attributes:
        domain: all axes that it walks.
        inner: those within a program; None while nothing asks for any.
        inline: reductions over them, which are there for the rest of the kernel.
        reductions: the same, as the kernel computes them: of loads where others compute a part.
        shares, share: how many programs share a row, and elements of each.
        partial_axis: the axis of the parts, in the buffers of `partials`.
        summed: the rows that a program adds up.
    """

    domain: frozenset[int]
    inner: frozenset[int] | None = None
    inline: set[Node] = field(default_factory=set)
    reductions: list[Node] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    partials: list[Partial] = field(default_factory=list)
    shares: int = 1
    share: int = 0
    partial_axis: int | None = None
    summed: frozenset[int] = frozenset()
    loads: set[Node] = field(default_factory=set)

    @property
    def rows(self) -> frozenset[int]:
        return self.domain - (self.inner or frozenset())

    @property
    def anchors(self) -> list[Node]:
        """What it computes in the end."""
        return [*self.reductions, *(x.node for x in (*self.stores, *self.partials))]

    def forms(self) -> list[tuple[Strides, int]]:
        """Strides and offset of each tensor that it reads or writes."""
        read = [n.data[2:] for n in below(self.anchors) if n.kind == "load"]
        return read + [(x.axes, x.offset) for x in (*self.stores, *self.partials)]

    def name(self, number: int) -> str:
        """What tools call it: by what it computes, arithmetic only where there is nothing else."""
        found = dict.fromkeys(
            n.data[0] if n.kind == "reduction" else n.data for n in below(self.anchors) if n.kind in COMPUTING
        )
        telling = [name for name in found if name not in PLAIN] or [*found]
        return "_".join([f"kernel{number}", *telling[:MOST_NAMES]])

    def reduce_over(self, inner: frozenset[int], length: int, shares: int, unit: int) -> None:
        """Give each program rows along these axes, or shares of rows, in multiples of so many elements."""
        self.share = -(-length // (unit * shares)) * unit
        self.inner, self.shares = inner, max(1, -(-length // self.share)) if shares > 1 else 1


@dataclass
class Buffer:
    """A tensor that kernels write: a result, or a temporary one, whose size may depend on how many programs run."""

    type: torch.dtype
    axes: Strides
    result: Result | None = None
