"""A repair of how torch tells which inputs overlap in memory: it misses rows of matrices with gaps between the rows."""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

from torch import Tensor


@functools.cache
def correct_overlap() -> None:
    """Make torch find all inputs that overlap: a mutation of one would not be seen in the others.

    For good, not while a function is traced: torch 2.11 asks in each call, too, and by then has to agree.
    """
    from torch._functorch._aot_autograd import input_output_analysis

    analysis: Any = input_output_analysis
    overlapping = analysis.compute_overlapping_tensors

    def corrected(tensors: Sequence[Tensor], symbolic: bool) -> set[int]:
        found = set(overlapping(tensors, symbolic=symbolic))
        for (i, a), (j, b) in itertools.combinations(enumerate(tensors), 2):
            if _rows_overlap(a, b):
                found |= {i, j}
        return found

    analysis.compute_overlapping_tensors = corrected


def _rows_overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two matrices with equal, longer strides from row to row share elements.

    torch (2.11 to 2.15) asks whether the rows of the second fit between those of the first, but not whether they begin
    behind these: `x[:-1, :2]` and `x[1:, :2]` would not overlap.
    """
    if a.dim() != 2 or b.dim() != 2 or a.stride() != b.stride() or a.stride(1) != 1 or not a.numel() or not b.numel():
        return False
    first, second = sorted((a, b), key=lambda t: t.storage_offset())
    row, distance = first.stride(0), second.storage_offset() - first.storage_offset()
    if row == 0 or distance >= row * (first.shape[0] - 1) + first.shape[1]:
        return False
    behind = distance % row
    return bool(behind < first.shape[1] or behind + second.shape[1] > row)
