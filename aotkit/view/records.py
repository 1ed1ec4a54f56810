"""Parts of `Graphs.json()` as classes, and what a `GraphDiff` consists of.

Nodes are indices into `nodes` of the `Graphs.json()` of their side.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from aotkit.text import bytes_name, flops_name, seconds_name, sum_known

T = TypeVar("T")


@dataclass(frozen=True)
class Cost:
    """Of one operation, or of several together.

    Attributes:
        nbytes: read and written by a kernel of its own, each tensor as a whole; None if a size depends on data.
        flops: of matrix products, convolutions and attention.
        seconds: by the partitioner's estimate, which may count on fusion; None if it has made none.
    """

    nbytes: int | None
    flops: int
    seconds: float | None

    def __str__(self) -> str:
        parts = [f"{bytes_name(self.nbytes)} moved"]
        if self.flops:
            parts.append(flops_name(self.flops))
        if self.seconds is not None:
            parts.append(f"about {seconds_name(self.seconds)}")
        return ", ".join(parts)


def total_cost(costs: Iterable[Cost]) -> Cost:
    """The sum; what is unknown of one is unknown of all."""
    found = list(costs)
    return Cost(
        sum_known(cost.nbytes for cost in found),
        sum(cost.flops for cost in found),
        sum_known(cost.seconds for cost in found),
    )


@dataclass(frozen=True)
class Pair(Generic[T]):
    """The same thing on both sides, or None where a side lacks it."""

    a: T | None
    b: T | None

    @property
    def one(self) -> T:
        """That of A, if there is one."""
        found = self.b if self.a is None else self.a
        assert found is not None
        return found


@dataclass(frozen=True)
class Operation:
    """One operation.

    Attributes:
        node: its index.
        graph: "forward" or "backward".
        kind, role: its `class` and `role` in `Graphs.json()`.
        type: dtype and shape, as text.
        expression: with its arguments.
        source: the user's line, `model.py:28`, or "" if unknown.
        code: the text of that line.
        module: path of the innermost module, or "".
        cost: of what is recomputed.
    """

    node: int
    graph: str
    name: str
    operator: str
    kind: str
    role: str
    type: str
    expression: str
    source: str
    code: str
    module: str
    cost: Cost | None

    @property
    def nodes(self) -> tuple[int, ...]:
        """As `Saved` has them."""
        return (self.node,)


@dataclass(frozen=True)
class Saved:
    """A storage that forward keeps for backward.

    Attributes:
        nodes: those of forward that are saved and lie in it; name, type, kind and reason are those of the first.
        kind: as in `saved` of `Graphs.json()`: "activation", or what the caller holds anyway, or "symbolic size".
        nbytes: of the whole storage; None if that depends on data.
    """

    nodes: tuple[int, ...]
    name: str
    type: str
    kind: str
    nbytes: int | None
    reason: str
    source: str
    code: str


@dataclass(frozen=True)
class Fused:
    """A region, of operations that one backend compiles together, or a kernel, of operations that run at once.

    Attributes:
        graph: "forward" or "backward".
        alone: those of its nodes that are in no region, or no kernel, on the other side, or are not there at all.
        backend: of a region; "" of a kernel.
        kernel: its name; "" of a region.
    """

    graph: str
    nodes: tuple[int, ...]
    alone: tuple[int, ...] = ()
    backend: str = ""
    kernel: str = ""


@dataclass(frozen=True)
class Fusion:
    """Regions, or kernels, of A and those of B that they share operations with, where they are not the same."""

    a: tuple[Fused, ...]
    b: tuple[Fused, ...]


@dataclass(frozen=True)
class Output:
    """A place among the outputs of a graph, where `a` and `b` return different values; None: nothing."""

    graph: str
    position: int
    a: int | None
    b: int | None
