"""What each operation that backward repeats costs."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor
from torch.fx import Node

from aotkit.inspection.nodes import bytes_name, flops_name, seconds_name, size_hint, storage_of, sum_known
from aotkit.inspection.saved import recomputed

if TYPE_CHECKING:
    from aotkit.graphs import Graphs


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


def recomputation_costs(graphs: "Graphs") -> dict[Node, Cost]:
    """What each operation of backward costs that forward had done already, in the order of the graph."""
    return {node: _cost(node) for node in recomputed(graphs)}


def total_cost(costs: Collection[Cost]) -> Cost:
    """The sum; what is unknown of one is unknown of all."""
    return Cost(
        nbytes=sum_known(cost.nbytes for cost in costs),
        flops=sum(cost.flops for cost in costs),
        seconds=sum_known(cost.seconds for cost in costs),
    )


def bytes_moved(node: Node) -> int | None:
    """The bytes that an operation reads and writes; None if a size depends on data."""
    return sum_known(nbytes_of(value) for n in (node, *node.all_input_nodes) for value in tensors_of(n))


def _cost(node: Node) -> Cost:
    from aotkit.passes import flops

    is_described = all("val" in n.meta for n in (node, *node.all_input_nodes))
    return Cost(bytes_moved(node), flops(node) if is_described else 0, node.meta.get("recompute_seconds"))


def tensors_of(node: Node) -> list[Tensor]:
    """The tensors that a node computes."""
    value = node.meta.get("val")
    return [v for v in (value if isinstance(value, list | tuple) else [value]) if isinstance(v, Tensor)]


def nbytes_of(value: Tensor, whole: bool = False) -> int | None:
    """Of the elements, but not more than there are in memory: an expanded tensor repeats them.

    Args:
        whole: of all the memory instead that it is a part of.
    """
    size = size_hint(value.numel() * value.element_size())
    if (storage := storage_of(value)) is None:
        return size
    memory = size_hint(storage.nbytes())
    return memory if whole else None if size is None or memory is None else min(size, memory)
