"""Which sums of columns are added up by the kernel that computes what they sum.

Inductor has sums of columns join a kernel that reduces rows of the same tensors, as long as neither needs what the
other makes. Here they also join a kernel whose elements they sum, whether it reduces rows or nothing at all: the
gradient of a bias is the sum of what dropout's, normalisation's or an activation's backward pass has just computed.
That saves to read it once more, and to store it where nothing else reads it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch._inductor.dependencies import MemoryDep
from torch._inductor.ir import ComputedBuffer
from torch._inductor.scheduler import FusedMixOrderReductions, FusedSchedulerNode, MixOrderReduction, SchedulerNode
from torch._inductor.utils import sympy_product
from torch._inductor.virtualized import V

from aotkit.torch_private.kernel_changes.row_reductions import LONGEST

_SUMMED = (torch.float16, torch.bfloat16, torch.float32)  # what is added up is float32


@dataclass(frozen=True)
class Matrix:
    """Whose columns are summed.

    Attributes:
        is_split: Inductor would sum some rows at a time, and the sums of these in another kernel.
    """

    rows: int
    width: int
    is_split: bool

    @property
    def numel(self) -> int:
        return self.rows * self.width


def joined(scheduler: Any, nodes: Sequence[Any], pays: Callable[[Any, Any, Matrix], bool]) -> list[Any]:
    """The scheduler's nodes, each a kernel, in which sums of columns have joined others; in an order that works.

    Args:
        pays: whether it is worth while, for a kernel, what joins it, and the matrix.
    """
    summed = {node: matrix for node in nodes if (matrix := _summed_matrix(node)) is not None}
    if not summed:
        return list(nodes)
    kernel_of = {node: node for node in nodes}  # what has become of each
    users = defaultdict[str, list[Any]](list)
    for node in nodes:
        for name in node.used_buffer_names():
            users[name].append(node)
    for sums, matrix in summed.items():
        found = dict.fromkeys(kernel_of[user] for read in sums.read_writes.reads for user in users[read.name])
        for kernel in found:
            if kernel is sums or not _fits(kernel, sums, matrix) or not pays(kernel, sums, matrix):
                continue
            if _is_possible(scheduler, kernel, sums, matrix):
                both = _join(scheduler, kernel, sums)
                kernel_of |= {node: both for node, now in kernel_of.items() if now in (kernel, sums)}
                break
    kernels = dict.fromkeys(kernel_of.values())
    if len(kernels) == len(nodes):
        return list(nodes)
    return list(scheduler.topological_sort_schedule(sorted(kernels, key=lambda k: k.min_order)))


def _summed_matrix(node: Any) -> Matrix | None:
    """Of a kernel that does nothing but sum columns of one matrix, or of several that are as large."""
    if not _is_plain(node) or not node.is_gpu() or node.has_aliasing_or_mutation():
        return None
    found = {_matrix_of(part) for part in node.get_nodes()}
    return found.pop() if len(found) == 1 else None


def _is_plain(node: Any) -> bool:
    return type(node) in (SchedulerNode, FusedSchedulerNode) and all(type(n) is SchedulerNode for n in node.get_nodes())


def _matrix_of(part: Any) -> Matrix | None:
    """Of a sum of columns; None for anything else."""
    node = part.node
    if not isinstance(node, ComputedBuffer) or node.get_reduction_type() != "sum":
        return None
    if not are_narrow(part):
        return None
    is_split = node._split_size is not None
    width, rows = map(sympy_product, _sizes(node))
    return Matrix(int(rows), int(width), is_split) if width.is_number and rows.is_number else None


def are_narrow(sums: Any) -> bool:
    """Whether float32, in which partial sums are stored, holds them."""
    nodes: Any = (part.node for part in sums.get_nodes() if part.is_reduction())
    return all(node.get_dtype() in _SUMMED and node.data.src_dtype in _SUMMED for node in nodes)


def _sizes(node: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    """Of the results of a reduction, and of what each is made of."""
    if node._split_size is None:
        return node.data.ranges, node.data.reduction_ranges
    return node._original_ranges, node._original_reduction_ranges


def first_part(kernel: Any) -> Any:
    """What a kernel does beside summing columns."""
    return kernel.node1 if isinstance(kernel, FusedMixOrderReductions) else kernel


def reduces_rows(kernel: Any) -> bool:
    return any(part.is_reduction() for part in kernel.get_nodes())


def _fits(kernel: Any, sums: Any, matrix: Matrix) -> bool:
    """Whether a kernel goes through the same matrix, row by row."""
    first = first_part(kernel)
    if not _is_plain(first) or first.is_template() or first.get_device() != sums.get_device():
        return False
    if matrix.width > LONGEST or first.has_aliasing_or_mutation():
        return False
    if kernel is not first and {_matrix_of(n) for n in kernel.node2.get_nodes() if n.is_reduction()} != {matrix}:
        return False
    elements = (matrix.numel, 1)
    groups = {elements, (matrix.rows, matrix.width), (matrix.rows, 1)} if reduces_rows(first) else {elements}
    if any(tuple(part.group[1]) not in groups for part in first.get_nodes()):
        return False
    return bool(MixOrderReduction.is_contiguous_node(first))


def _is_possible(scheduler: Any, kernel: Any, sums: Any, matrix: Matrix) -> bool:
    """Whether sums need nothing that is not there yet when the kernel has come to a row, and it needs no sum."""
    own, of_sums = kernel.get_operation_names(), sums.get_operation_names()
    others = sums.ancestors - own
    if kernel.ancestors & of_sums or any(scheduler.name_to_fused_node[op].ancestors & own for op in others):
        return False
    if scheduler.will_fusion_create_cycle(kernel, sums):
        return False
    first = first_part(kernel)
    written = {dep.name: dep for part in first.get_nodes() for dep in part.read_writes.writes}
    at_hand = first.used_buffer_names()
    reads = [read for part in sums.get_nodes() for read in _reads(part)]
    whole = [read for read in reads if V.graph.get_numel(read.name) == matrix.numel]
    needed = {dep.name for dep in sums.unmet_dependencies}
    made = [read for read in reads if read.name in kernel.get_buffer_names()]
    return (
        bool(whole)
        and all(read.name in at_hand and sympy.expand(read.index - read.place) == 0 for read in whole)
        and all(read.name in written and _is_same(written[read.name], read, matrix) for read in made)
        and not (needed & kernel.get_buffer_names()) - {read.name for read in made}
    )


@dataclass(frozen=True)
class _Read:
    """Of one element for each row and column.

    Attributes:
        index: where in memory.
        place: row times the width, plus column, in the same variables.
        row: the row.
    """

    name: str
    index: sympy.Expr
    place: sympy.Expr
    row: sympy.Expr


def _reads(part: Any) -> Iterator[_Read]:
    """What a sum reads, as if it were not split."""
    node = part.node
    with nullcontext() if node._split_size is None else node.with_original_inner_fn():
        found = node.get_read_writes()
    # Sizes of 1 have no variable.
    column_sizes, row_sizes = ([size for size in some if size != 1] for some in _sizes(node))
    variables = list(found.var_ranges)
    column = _position(variables[: len(column_sizes)], column_sizes)
    row = _position(variables[len(column_sizes) :], row_sizes)
    place = row * sympy.prod(column_sizes) + column
    for dep in found.reads:
        if isinstance(dep, MemoryDep):
            yield _Read(dep.name, V.graph.sizevars.simplify_with_ranges(dep.index, found.var_ranges), place, row)


def _position(variables: Sequence[sympy.Symbol], sizes: Sequence[Any]) -> sympy.Expr:
    """Of an element among all, the last variable moving first."""
    position = sympy.Integer(0)
    for variable, size in zip(variables, sizes, strict=True):
        position = position * size + variable
    return position


def _is_same(written: Any, read: _Read, matrix: Matrix) -> bool:
    """Whether an element is read for the row and column at which the kernel writes it."""
    if not isinstance(written, MemoryDep):
        return False
    flat = written.normalize()
    if flat.index not in flat.var_names:
        return False
    at = {matrix.numel: read.place, matrix.rows: read.row}.get(int(sympy.prod(flat.size)))
    return at is not None and sympy.expand(read.index - at) == 0


def _join(scheduler: Any, kernel: Any, sums: Any) -> Any:
    if kernel is first_part(kernel):
        both = FusedMixOrderReductions(kernel, sums)
    else:
        backend = scheduler.get_backend(kernel.get_device())
        both = FusedMixOrderReductions(kernel.node1, backend.fuse(kernel.node2, sums))
    scheduler.name_to_fused_node.update({node.get_name(): both for node in both.get_nodes()})
    return both
