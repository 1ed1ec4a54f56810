"""What the nodes of a graph read and write in memory, with every view taken for what it views."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.aot import pytree
from aotkit.aot.effects import changes_inputs
from aotkit.aot.graphs import is_pointwise
from aotkit.aot.partition import flops
from aotkit.benchmark.operator_costs import is_barrier
from aotkit.inspection import Memory, looks_up_in, memories


@dataclass(eq=False)
class Step:
    """A node that computes something, or several in one kernel.

    Attributes:
        reads: (which part, of which memory) -> bytes. Equal views are one part.
        writes: what it makes.
        flops: of matrix products, convolutions and attention.
        alone: whether it is a kernel that others cannot be fused with.
        pointwise: whether each element of it can be computed by itself, in any kernel that reads its sources.
    """

    reads: Mapping[tuple[Hashable, Memory], int]
    writes: Sequence[Memory]
    flops: int
    alone: bool
    pointwise: bool = False

    @cached_property
    def sources(self) -> dict[Memory, int]:
        """How many bytes it reads of each memory: of all parts together, but not more than there are."""
        total: dict[Memory, int] = {}
        for (_, memory), nbytes in self.reads.items():
            total[memory] = min(memory.nbytes, total.get(memory, 0) + nbytes)
        return total


@dataclass
class Dataflow:
    """A graph without its views, numbers and tuples.

    Attributes:
        inputs: of each placeholder that is a tensor, the memory.
        outputs: of each output, the memory: none for a number or None.
        constants: what the graph holds as attributes.
        steps: the nodes that compute, in order.
    """

    inputs: list[Sequence[Memory]]
    outputs: list[Sequence[Memory]]
    constants: list[Memory]
    steps: list[Step]


def dataflow(gm: GraphModule, given: Sequence[Sequence[Memory]] = ()) -> Dataflow:
    """Find out what each node reads and writes, from the fake tensors that tracing has left on the nodes.

    Args:
        given: the memory of the first placeholders that are tensors.
    """
    flow = Dataflow([], [], [], [])
    known = memories(gm, given)
    for node in gm.graph.nodes:
        if node.op == "output":
            flow.outputs = [list(known[n].values()) if isinstance(n, Node) else [] for n in node.args[0]]
            break
        own = list(known[node].values())
        if node.op == "placeholder":
            flow.inputs += [own] if own else []
            continue
        seen = {memory for i in node.all_input_nodes for memory in known[i].values()}
        made = [memory for memory in own if memory not in seen]
        if node.op == "get_attr":
            flow.constants += made
        elif made or changes_inputs(node):
            work = flops(node)
            alone = is_barrier(node, work)
            flow.steps.append(Step(_reads(node, known), made, work, alone, is_pointwise(node) and not alone))
    return flow


def _reads(node: Node, known: Mapping[Node, Mapping[Hashable, Memory]]) -> dict[tuple[Hashable, Memory], int]:
    reads: dict[tuple[Hashable, Memory], int] = {}
    for source in node.all_input_nodes:
        part, nbytes = _part(source), tensor_bytes(source)
        if looks_up_in(source, node):
            part, nbytes = node, min(nbytes, tensor_bytes(node))
        for memory in known[source].values():
            reads[part, memory] = nbytes
    return reads


def _part(node: Node) -> Hashable:
    """Equal for equal views of the same memory."""
    return tuple((value.shape, value.stride(), value.storage_offset()) for value in _tensors(node))


def tensor_bytes(node: Node) -> int:
    """The bytes of all elements of a node's value."""
    return sum(value.numel() * value.element_size() for value in _tensors(node))


def _tensors(node: Node) -> list[Tensor]:
    return [value for value in pytree.tree_leaves(node.meta.get("val")) if isinstance(value, Tensor)]
