"""Which tokens would repeat an n-gram, as one kernel in Triton."""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = tl.constexpr(256)  # windows in a program
# Triton compiles for numbers that are 1 or multiples of 16; these change with each token.
NUMBERS = ("vocabulary", "window_row", "window_step", "count", "id_row", "newest", "size", "rows_each")


def forbid(scores: Tensor, windows: Tensor, ids: Tensor) -> None:
    """Write -inf into scores, which are contiguous; for the arguments see `without` in ngrams.py."""
    sequences, count, size = windows.shape
    ids = ids if ids.stride(1) == 1 else ids.contiguous()
    windows = windows if windows.stride(2) == 1 else windows.contiguous()
    kernel[len(scores), triton.cdiv(count, BLOCK.value)](
        scores, windows, ids, scores.shape[1], windows.stride(0), windows.stride(1), count, ids.stride(0),
        ids.shape[1] + 1 - size, size, len(scores) // sequences,
    )  # fmt: skip


@triton.jit(do_not_specialize=NUMBERS)
def kernel(scores, windows, ids, vocabulary, window_row, window_step, count, id_row, newest, size, rows_each):
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    window = windows + row // rows_each * window_row + place * window_step
    same = place < count
    for i in range(size - 1):
        same = same & (tl.load(window + i, same, 0) == tl.load(ids + row * id_row + newest + i))
    token = tl.load(window + size - 1, same, -1)
    tl.store(scores + row * vocabulary + token, float("-inf"), same & (token >= 0) & (token < vocabulary))
