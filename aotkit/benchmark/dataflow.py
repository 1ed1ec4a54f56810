"""What the nodes of a graph read and write in memory, with every view taken for what it views."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.inspection import Memory, looks_up_in, memories
from aotkit.passes import changes_inputs, flops, is_pointwise, packet_name
from aotkit.torch_private.dispatch import pytree

# Kernels of libraries, and those that no pointwise kernel runs into: besides all that does floating-point work.
POOLING = "max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices \
    max_pool3d_with_indices_backward _low_memory_max_pool_with_offsets avg_pool2d avg_pool2d_backward \
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward"
SCATTERING = "scatter scatter_add scatter_reduce index_put _unsafe_index_put index_add embedding_dense_backward"
ORDERING = "sort topk kthvalue median argsort searchsorted multinomial nonzero"
SCANS = "cumsum cumprod cummax cummin logcumsumexp"
OTHERS = "upsample_bilinear2d upsample_bilinear2d_backward upsample_nearest2d_backward _embedding_bag \
    mkldnn_rnn_layer _cudnn_rnn _fft_r2c _fft_c2r _fft_c2c"
BARRIERS = frozenset(" ".join([POOLING, SCATTERING, ORDERING, SCANS, OTHERS]).split())


@dataclass(eq=False)
class Step:
    """A node that computes something, or several in one kernel."""

    reads: Mapping[tuple[Hashable, Memory], int]  # (which part, of which memory) -> bytes. Equal views are one part
    writes: Sequence[Memory]
    flops: int  # of matrix products, convolutions and attention
    alone: bool  # a kernel of its own, which reads its inputs from memory and writes its results there
    pointwise: bool = False  # each element can be computed by itself, in any kernel that reads its sources

    @cached_property
    def sources(self) -> dict[Memory, int]:
        """How many bytes it reads of each memory: of all parts together, but not more than there are."""
        total: dict[Memory, int] = {}
        for (_, memory), nbytes in self.reads.items():
            total[memory] = min(memory.nbytes, total.get(memory, 0) + nbytes)
        return total


@dataclass
class Dataflow:
    """A graph without its views, numbers and tuples."""

    inputs: list[Sequence[Memory]]  # of each placeholder that is a tensor
    outputs: list[Sequence[Memory]]  # of each output: none for a number or None
    constants: list[Memory]  # what the graph holds as attributes
    steps: list[Step]  # the nodes that compute, in order


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
            alone = work > 0 or packet_name(node) in BARRIERS or "attention" in packet_name(node)
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
