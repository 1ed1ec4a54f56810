"""Results of kernels that go through rows and sum columns, stored in place of what the rows are made of.

The gradient of a sum that is normalised is as large as the sum, which the forward pass has saved for nothing else
(`donation.py`). Inductor stores a result in place of what its node is the last to read. Sums of columns that read the
same come neither before nor after that node, to Inductor, so that the result takes memory of its own.

But each program of such a kernel goes through rows of its own, and loads all of a row before it stores any of it. It
does no harm that others read a row, too, for what they make of the same row.

On an H200 with partition `default`, a step of layer norm of a sum of [2, 4096, 4096] in float16 holds 324 MiB instead
of 388, one of layer norm between dropout and residual 228 instead of 292, in the same time.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import sympy  # type: ignore[import-untyped]
from torch import Tensor
from torch._inductor.codegen.simd import SIMDScheduling
from torch._inductor.dependencies import MemoryDep
from torch._inductor.scheduler import SchedulerNode
from torch._inductor.virtualized import V

# Inductor takes 4 rows of this length at a time, with one thread for each element at most; longer ones with fewer. Of
# fewer elements than threads some would be loaded twice, maybe after they have been overwritten.
LEAST_WIDTH = 32
_codegen_schedule: Any = SIMDScheduling.codegen_node_schedule_with_kernel


@contextmanager
def stored_in_place() -> Iterator[None]:
    """While kernels are written, let Inductor overwrite what only one that sums columns, too, still needs."""
    with patch.object(SIMDScheduling, "codegen_node_schedule_with_kernel", _codegen):
        yield


def _codegen(scheduling: Any, schedule: Any, kernel: Any) -> None:
    """The only one that reads what is overwritten is then, to Inductor, the node that stores in its place."""
    with ExitStack() as narrowed:
        if kernel.mix_order_reduction:
            # Sums of columns are elements of rows by now, in the order in which this kernel goes through them.
            parts = [part for part in schedule if isinstance(part, SchedulerNode)]
            for buffer, user in overwritten(parts, kernel.numels["x"], kernel.numels["r0_"]):
                narrowed.enter_context(patch.object(buffer, "users", [user]))
        _codegen_schedule(scheduling, schedule, kernel)


def overwritten(parts: Any, number: sympy.Expr, width: sympy.Expr) -> list[tuple[Any, Any]]:
    """What a kernel may overwrite, each with the one of its users that does so.

    Args:
        parts: nodes of the kernel, with what they read for each row and column.
        number: of rows.
        width: elements of a row.
    """
    if not width.is_number or width < LEAST_WIDTH:
        return []
    kernel = {part.get_name(): part for part in parts}
    storing = [part for part in parts if _is_stored(part, kernel.keys())]
    found = dict[str, tuple[Any, Any]]()
    for name in dict.fromkeys(read.name for part in storing for read in part.read_writes.reads):
        scheduler = parts[0].scheduler
        buffer = scheduler.name_to_donated_buffer.get(name) or scheduler.name_to_buf.get(name)
        if buffer is None or _is_viewed(name):
            continue
        over = scheduler.completed_operations | V.graph.removed_operations
        users = {user.get_name(): user for user in buffer.users if user.get_name() not in over}
        if not all(user in kernel and _reads_rows(kernel[user], name, number * width) for user in users):
            continue
        dtype = buffer.node.get_dtype()
        for part in storing:
            storer = part.get_name()
            is_alike = storer in users and users[storer].can_inplace and part.node.get_dtype() == dtype
            if is_alike and storer not in found:
                found[storer] = buffer, users[storer]
                break
    return list(found.values())


def _is_stored(part: Any, kernel: Any) -> bool:
    """Whether its one result outlives the kernel."""
    names = [output.get_name() for output in part.get_outputs()]
    return len(names) == 1 and not part.scheduler.can_buffer_be_removed_through_fusion(names[0], kernel)


def _is_viewed(name: str) -> bool:
    """Whether another input of the graph has its memory, or may have: of that, Inductor does not know."""
    if name not in V.graph.graph_inputs:
        return False
    inputs = zip(V.graph.graph_input_names, V.graph.example_inputs or (), strict=False)
    memory = {other: x.untyped_storage()._cdata for other, x in inputs if isinstance(x, Tensor)}
    return name not in memory or [*memory.values()].count(memory[name]) > 1


def _reads_rows(part: Any, name: str, numel: sympy.Expr) -> bool:
    """Whether it reads only the element of the row and column that the kernel has come to."""
    reads = [read for read in part.read_writes.reads if read.name == name]
    return bool(reads) and all(_is_in_order(read, numel) for read in reads)


def _is_in_order(read: Any, numel: sympy.Expr) -> bool:
    if not isinstance(read, MemoryDep):
        return False
    flat = read.normalize()
    return flat.var_names == (flat.index,) and sympy.prod(flat.size) == numel
