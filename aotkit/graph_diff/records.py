"""What a `GraphDiff` consists of. Nodes are indices into `nodes` of the `Graphs.json()` of their side."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from aotkit.inspection import Cost

T = TypeVar("T")


@dataclass(frozen=True)
class Pair(Generic[T]):
    """The same thing on both sides, or None where a side lacks it."""

    a: T | None
    b: T | None


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
        kind: "activation"; or what the caller holds anyway: "input", "view of input", "output", "view of output"; or
            "symbolic size".
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
        backend: of a region; "" of a kernel.
        kernel: its name; "" of a region.
        alone: those of its nodes that are in no region, or no kernel, on the other side, or are not there at all.
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


def is_kept_alike(pair: Pair[Saved]) -> bool:
    """Whether both sides save it, in as many bytes; as an activation in both, or in neither."""
    if pair.a is None or pair.b is None:
        return False
    return pair.a.nbytes == pair.b.nbytes and (pair.a.kind == "activation") == (pair.b.kind == "activation")
