"""The sum of a row's exponentials in a GPU's kernels, by the GPU's own exponential function.

Inductor calls a library's, which is exact to one digit for any argument, in about 9 instructions. The GPU's takes two,
and is wrong by two digits, and by another half for each unit of the argument. Here arguments are differences to the
row's maximum, and what is far from it weighs little: of 4096 normal numbers, the logarithm of the sum is as far from
float64's as with the library's. On an H200 cross entropy takes 32.5 us instead of 35.3 ([2, 4096, 4096], float16). A
kernel that stores rows of exponentials computes the exact ones anyway, and sums these.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch._inductor.config as config
from torch._inductor.codegen.triton import TritonKernel

from aotkit.torch_private.kernel_changes.row_reductions import stores_rows

_reduction: Any = TritonKernel.reduction
FAST = {"use_fast_math": True}  # nothing but exponentials


@contextmanager
def quick_softmax_sums() -> Iterator[None]:
    """For the time of compiling a graph. What other threads compile meanwhile gets the same."""
    with patch.object(TritonKernel, "reduction", _reduce):
        yield


def _reduce(kernel: Any, dtype: Any, src_dtype: Any, reduction_type: str, value: Any) -> Any:
    is_quick = reduction_type == "online_softmax_reduce" and not stores_rows(kernel.features)
    with config.patch(FAST if is_quick else {}):
        return _reduction(kernel, dtype, src_dtype, reduction_type, value)
