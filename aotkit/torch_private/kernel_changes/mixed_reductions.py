"""Sums of columns in the kernel that goes through the rows of the same values, as backward passes have them.

Inductor writes such kernels ("mix-order reductions") where rows are reduced: each of their programs goes through some
rows, and adds up the columns of those. It wants 5 Mi elements, 4096 rows, twice as many as columns; and programs of 16
rows, or 8 for each multiprocessor of the GPU, that wait for one row after the other, and load what all rows are
computed with for each. Here fewer elements and rows are enough, other kernels sum columns, too (`column_sums.py`),
programs stay and load rows ahead, and what all rows have in common is loaded once.

On an H200 under torch 2.11, with backward, in float16 of [2, 4096, 4096]: layer norm of a sum with dropout takes 114.4
us (159.4 with Inductor's programs), with a bias 119.6 (227.8 where the bias is summed by a kernel of its own), bias,
dropout and residual 84.2 (112.6). From which size on it pays: layer norm of a sum with dropout and bias in float16 of
[4, 1024, 1024], where 16 MiB are read, takes 31.2 us instead of 46.9.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch._inductor.config as config
from torch._inductor.codegen.common import CSEProxy
from torch._inductor.codegen.simd import SIMDScheduling
from torch._inductor.codegen.simd_kernel_features import SIMDKernelFeatures
from torch._inductor.codegen.triton import TritonKernel
from torch._inductor.ir import Reduction
from torch._inductor.runtime.hints import DeviceProperties, ReductionHint
from torch._inductor.runtime.runtime_utils import next_power_of_2
from torch._inductor.scheduler import MixOrderReduction, Scheduler
from torch._inductor.virtualized import V

from aotkit.torch_private.kernel_changes.borrowed_rows import borrowed_rows
from aotkit.torch_private.kernel_changes.column_sums import Matrix, are_narrow, first_part, joined, reduces_rows
from aotkit.torch_private.kernel_changes.in_place import stored_in_place
from aotkit.torch_private.kernel_changes.narrow_sums import summed_and_converted
from aotkit.torch_private.kernel_changes.own_kernels import launch
from aotkit.torch_private.kernel_changes.partial_sums import Place, added_up
from aotkit.torch_private.kernel_changes.row_reductions import rows_at_once
from aotkit.torch_private.kernel_changes.statements import LOAD_OF_ALL_ROWS

_OPTION = "triton.mix_order_reduction"
ANY_SIZE = {f"{_OPTION}_non_strict_mode": True}  # whether they pay is asked here, not by Inductor
LEAST_BYTES, LEAST_ROWS = 12 * 2**20, 2048  # fewer rows make few programs
LEAST_SPLIT = 16  # rows of a program
SHARED_MEMORY = 160 * 1024  # bytes of one program
IN_FLIGHT = 100 * 1024  # bytes that a multiprocessor loads at once: while it works on some, memory answers for others
REGISTERS = 128 * 1024  # bytes of one program's sums
HELD = 96 * 1024  # bytes of these and of what each row is computed with
_can_fuse = MixOrderReduction.can_fuse
_fuse_nodes: Any = Scheduler.fuse_nodes
_codegen: Any = SIMDScheduling._codegen_mix_order_reduction
_codegen_body: Any = TritonKernel.codegen_body
_partial_accumulate: Any = CSEProxy.partial_accumulate


@contextmanager
def mixed_reductions() -> Iterator[None]:
    """For the time of compiling a graph. What other threads compile meanwhile gets the same."""
    with (
        config.patch(ANY_SIZE),
        patch.object(MixOrderReduction, "can_fuse", staticmethod(_can_mix)),
        patch.object(Scheduler, "fuse_nodes", _fuse),
        patch.object(SIMDScheduling, "codegen_mix_order_reduction", _codegen_mixed),
        patch.object(CSEProxy, "partial_accumulate", _accumulate),
        patch.object(TritonKernel, "codegen_body", _codegen_loop),
    ):
        yield


def _can_mix(node1: Any, node2: Any) -> bool:
    if not _can_fuse(node1, node2):
        return False
    of_rows, of_columns = (node1, node2) if MixOrderReduction.is_contiguous_node(node1) else (node2, node1)
    return are_narrow(of_columns) and _pays(node1, node2, *_sizes(of_rows))


def _pays(node1: Any, node2: Any, rows: int, width: int) -> bool:
    return rows >= LEAST_ROWS and width > 0 and _whole_bytes([node1, node2], width) >= LEAST_BYTES


def _fuse(scheduler: Any, nodes: Any) -> Any:
    nodes = _fuse_nodes(scheduler, nodes)
    if not config.triton.mix_order_reduction or V.graph.cpp_wrapper:
        return nodes
    return joined(scheduler, nodes, _joining_pays)


def _joining_pays(kernel: Any, sums: Any, matrix: Matrix) -> bool:
    first = first_part(kernel)
    others = () if kernel is first else kernel.node2.get_nodes()
    number = sum(node.is_reduction() for node in (*others, *sums.get_nodes()))
    return (
        _pays(first, sums, matrix.rows, matrix.width)
        and (reduces_rows(first) or _whole_bytes([sums], matrix.width) >= LEAST_BYTES)
        and _in_registers(number, matrix.width) <= REGISTERS
    )


def _in_registers(rows: int, width: int) -> int:
    """Bytes."""
    return rows * int(next_power_of_2(width)) * 4


def _accumulate(proxy: Any, name: str, reduction_type: str, value: Any, *more: Any) -> None:
    """Add up what is there: Inductor takes rows behind the last one along, of which loads give anything."""
    kernel = proxy.kernel
    if not kernel._has_constant_xmask():
        nothing = Reduction.default_accumulator(reduction_type, torch.float)
        value = kernel.cse.generate(
            kernel.compute, f"tl.where(xmask, {value}, {nothing})", dtype=value.dtype, shape=value.shape
        )
    _partial_accumulate(proxy, name, reduction_type, value, *more)
    kernel.store_buffer_names.add(name)  # a user of what the kernel has computed, like what it stores
    V.graph.wrapper_code.allocated.add(name)  # by what adds up the parts


def _codegen_loop(kernel: Any) -> None:
    """Load what is the same for all rows before the loop over them, if there are registers for it."""
    if kernel.mix_order_reduction:
        lines = kernel.loads._lines
        found = [line for line in lines if isinstance(line, str) and LOAD_OF_ALL_ROWS.fullmatch(line)]
        width = V.graph.sizevars.optimization_hint(kernel.numels["r0_"], fallback=0)
        if _in_registers(len(kernel.saved_partial_accumulate) + len(found), width) <= HELD:
            kernel.body.writelines(found)
            kernel.loads._lines = [line for line in lines if line not in found]
    _codegen_body(kernel)


def _sizes(node: Any) -> tuple[int, int]:
    """How many rows, and of how many elements; 0 if that is not known."""
    rows, width = (V.graph.sizevars.optimization_hint(n, fallback=0) for n in MixOrderReduction.get_numel_rnumel(node))
    return rows, width


def _codegen_mixed(scheduling: Any, node: Any) -> Any:
    lines = V.graph.wrapper_code.lines
    start = len(lines)
    is_decided = _is_decided()
    places: Mapping[str, Place] = {}
    with ExitStack() as changed:
        if not reduces_rows(node.node1):
            changed.enter_context(_as_rows(node.node2))
        if not is_decided:
            # Both count on our number of rows at a time.
            places = changed.enter_context(borrowed_rows())
            changed.enter_context(stored_in_place())
            changed.enter_context(config.patch(_options(node.node1, node.node2)))
        result = _codegen(scheduling, node.node1, node.node2)
    written = lines[start:]
    del lines[start:]
    device = V.graph.get_current_device_or_throw().type
    written = list(added_up(written, places, summed_and_converted, device, launch))
    lines += written  # after what defines a kernel for them
    return result


@contextmanager
def _as_rows(sums: Any) -> Iterator[None]:
    """What reduces nothing goes through the rows of the matrix whose columns are summed."""
    width, rows = MixOrderReduction.get_numel_rnumel(sums)
    with (
        patch.object(MixOrderReduction, "get_numel_rnumel", lambda node: (rows, width)),
        patch.object(SIMDKernelFeatures, "get_reduction_hint", lambda *args: ReductionHint.INNER),
    ):
        yield


def _is_decided() -> bool:
    """Whether the user has said how many rows a program goes through, or has Inductor find out."""
    triton = config.triton
    is_tuned = config.max_autotune or config.coordinate_descent_tuning or triton.mix_order_reduction_autotune_split_size
    return is_tuned or triton.mix_order_reduction_split_size is not None


def _options(node1: Any, node2: Any) -> dict[str, Any]:
    """`node1` reduces the rows."""
    rows, width = _sizes(node1)
    read = _read([node1, node2], width)
    sums = sum(node.is_reduction() for node in node2.get_nodes())
    vectors = [nbytes for nbytes, numel in read if numel == width]
    whole = [(nbytes, numel) for nbytes, numel in read if numel > width]
    are_held = _in_registers(sums + len(vectors), width) <= HELD
    of_a_row = sum(nbytes for nbytes, _ in whole) / rows + (0 if are_held else sum(vectors))
    nbytes = of_a_row * next_power_of_2(width) / width  # programs load padded rows
    processors = DeviceProperties.create(node1.get_device()).multi_processor_count
    has_bytes = any(size == numel for size, numel in whole)
    split, loads_ahead = programs(rows, width, nbytes, processors, has_bytes=has_bytes)
    return {f"{_OPTION}_split_size": split, f"{_OPTION}_allow_multi_stages": loads_ahead}


def programs(rows: int, width: int, nbytes: float, processors: int, *, has_bytes: bool = False) -> tuple[int, bool]:
    """How many rows each program goes through, and whether it loads some ahead.

    There are as few programs as multiprocessors, if they load enough at once; else more.

    On an H200 under torch 2.11, the gradients of BERT's layer norm, dropout and biases, 8192 rows of 768 in bfloat16:
    37 us with 16 rows of 17 KiB, 39 with 32, and 249 with 64, of which two at a time: their masks are spread over
    threads otherwise than what they mask, and go through shared memory. Without a mask 35, 38 and 41 us; with rows of
    7 KiB 25, 32 and 170; of gelu, rows of 3072, 60, 58 and 65.

    Args:
        width: elements of a row.
        nbytes: to be loaded for each row.
        processors: multiprocessors of the GPU.
        has_bytes: whether it loads rows of elements of one byte, as of a mask.
    """
    several_at_once = () if has_bytes else (4 * LEAST_SPLIT,)
    for split in (*several_at_once, 2 * LEAST_SPLIT, LEAST_SPLIT):
        at_once = rows_at_once(split, width)
        # As Inductor's `persistent_reduction` has it.
        stages = min(max(split // at_once // 4, 1), 2 if width > 8192 else 3)
        ahead = stages * at_once * nbytes
        of_each = rows / split / processors
        if ahead <= SHARED_MEMORY and of_each > 0.9 and of_each * ahead >= IN_FLIGHT:
            return split, True
    return LEAST_SPLIT, ahead <= SHARED_MEMORY


def _read(nodes: Sequence[Any], width: int) -> list[tuple[int, int]]:
    """What they read, if it is as long as a row or longer: bytes and elements."""
    hint = V.graph.sizevars.optimization_hint
    reads = {read.name: read for node in nodes for read in node.read_writes.reads}
    sizes = ((hint(read.get_numel(), fallback=0), read.numbytes_hint()) for read in reads.values())
    return [(nbytes, numel) for numel, nbytes in sizes if numel >= width]


def _whole_bytes(nodes: Sequence[Any], width: int) -> int:
    return sum(nbytes for nbytes, numel in _read(nodes, width) if numel > width)
