"""How Inductor reduces rows on a GPU: in one go, as long as they fit into registers.

Inductor does so for up to 1024 elements. Longer rows are read twice, by a loop that reduces and a loop that uses the
result, unless a kernel that it tries beside that is faster; and what such a loop makes of them may be stored in
between. On an H200 under torch 2.11, float16 of [2, 4096, 4096]: layer norm of a sum with dropout takes 47.7 us instead
of 76.1, softmax 39.3 instead of 81.6.

A kernel that stores no rows has little else to do than to load them: it has the fewest threads of which none loads more
than 128 bytes or 64 elements. By kernels written by hand, cross entropy's rows of 4096 in float16 take 19.9 us so, with
two and four times as many 20.4 and 23.4; rows of 12288 take 17.0, with half and twice as many 20.0 and 19.6.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import sympy  # type: ignore[import-untyped]
import torch._inductor.config as config
from torch._inductor.choices import InductorChoices
from torch._inductor.codegen.triton import FixedTritonConfig, TritonSymbols
from torch._inductor.runtime.hints import ReductionHint
from torch._inductor.runtime.runtime_utils import next_power_of_2
from torch._inductor.virtualized import V
from torch.utils._sympy.symbol import SymT, symbol_is_type

LONGEST = 16384  # elements: 32 of each of 512 threads
SHORTEST = 1024  # of which programs take one at a time
WARP_BYTES, WARP_ELEMENTS = 32 * 128, 32 * 64  # loaded by a warp at most
MOST_WARPS = 32
_get_block_shape: Any = TritonSymbols.get_block_shape


class WholeRows(InductorChoices):
    """Inductor's choices, but for rows of up to `LONGEST` elements that lie one after the other in memory.

    These are reduced in one go, and programs that only load them have few threads.
    """

    @staticmethod
    def should_use_persistent_reduction(features: Any, cooperative_reduction: bool) -> bool:
        is_row = features.get_reduction_hint() == ReductionHint.INNER and not cooperative_reduction
        if is_row and config.triton.persistent_reductions and _reads_rows(features):
            return bool(V.graph.sizevars.statically_known_leq(features.reduction_numel, LONGEST))
        return InductorChoices.should_use_persistent_reduction(features, cooperative_reduction)

    def triton_kernel_kwargs(self, kernel_cls: Any, features: Any, groups: Any, kernel_kwargs: Any) -> Any:
        known = super().triton_kernel_kwargs(kernel_cls, features, groups, kernel_kwargs)
        is_plain = groups[0].keys() == {"x", "r0_"} and "mix_order_reduction" not in known and not V.graph.cpp_wrapper
        if not is_plain or _is_tuned() or stores_rows(features):
            return known
        rows, width = (
            V.graph.sizevars.optimization_hint(n, fallback=0) for n in (features.numel, features.reduction_numel)
        )
        if rows < 2 or width < SHORTEST or not self.should_use_persistent_reduction(features, False):
            return known
        number = warps(_read_bytes(features) / rows, width)
        return {**known, "fixed_config": FixedTritonConfig({"XBLOCK": 1, "num_warps": number})}


def warps(nbytes: float, width: int) -> int:
    """Of a program that loads so many bytes, of so many elements, and does little else."""
    needed = max(nbytes / WARP_BYTES, width / WARP_ELEMENTS)
    return min(int(next_power_of_2(math.ceil(needed))), MOST_WARPS)


def rows_at_once(split: int, width: int) -> int:
    """Of a program that goes through `split` rows and sums columns, as Inductor's `persistent_reduction` has it."""
    return max(split // 32, 4 if width <= 512 else 1)


def _is_tuned() -> bool:
    """Whether the user has Inductor find out."""
    return bool(config.max_autotune or config.coordinate_descent_tuning or config.triton.multi_kernel)


def _read_bytes(features: Any) -> int:
    nodes = features.scheduler_nodes()
    reads = {read.name: read for read in _of_rows(features, (r for node in nodes for r in node.read_writes.reads))}
    return sum(read.numbytes_hint() for read in reads.values())


def _reads_rows(features: Any) -> bool:
    """Whether what is reduced is read, more than one value for each row."""
    return any(_of_rows(features, (read for node in features.reduction_nodes() for read in node.read_writes.reads)))


def stores_rows(features: Any) -> bool:
    """Whether a kernel that reduces rows stores more than one value for each."""
    return any(_of_rows(features, (write for node in features.scheduler_nodes() for write in node.read_writes.writes)))


def _of_rows(features: Any, accesses: Iterable[Any]) -> Iterator[Any]:
    """Those of more than one value for each row."""
    sizevars = V.graph.sizevars
    return (access for access in accesses if not sizevars.statically_known_leq(access.get_numel(), features.numel))


@contextmanager
def whole_rows() -> Iterator[None]:
    """For the time of compiling a graph, unless somebody has made other choices than Inductor's own."""
    if type(V.choices) is not InductorChoices:
        yield
        return
    with V.set_choices_handler(WholeRows()), patch.object(TritonSymbols, "get_block_shape", _shape_of_block):
        yield


def _shape_of_block(expression: sympy.Expr) -> Any:
    """Of what is loaded there. Under torch 2.11 Inductor fails where a program's row number is no dimension of it."""
    if V.kernel.no_x_dim:
        expression = expression.subs({x: 0 for x in expression.free_symbols if symbol_is_type(x, SymT.XBLOCK)})
    return _get_block_shape(expression)
