"""How kernels of the backend `fuser` are laid out where a GPU is sensitive to it; nothing runs."""

import pytest
import torch
from torch.nn import functional as F

from aotkit.backends.fuser import limits
from tests.backends.test_fuser_kernels import backward, forward, rand


def first(compiled):
    return compiled.launches[0].schedule


def test_gradients_of_a_bias_are_summed_by_enough_programs():
    """A tile is wide enough to read whole words, and each column is shared."""
    way = first(backward(lambda x, b: F.gelu(x + b), rand(8, 512, 1024), rand(1024)))
    assert way.row_block >= 64
    assert way.grid[0] * way.grid[1] >= 2 * limits.MULTIPROCESSORS
    assert way.stages > 1


@pytest.mark.parametrize("count", [4096, 4000, 5000, 1111])
def test_tiles_of_a_shared_column_are_of_one_share(count):
    compiled = backward(lambda x, b: F.gelu(x + b), rand(count, 1024), rand(1024))
    kernel, way = compiled.plan.kernels[0], first(compiled)
    assert kernel.share % way.inner_block == 0
    assert kernel.share * (kernel.shares - 1) < count <= kernel.share * kernel.shares


@pytest.mark.parametrize(("dtype", "is_copied"), [(torch.float16, False), (torch.float32, True)])
def test_a_walk_does_not_wait_for_halves_of_a_mask(dtype, is_copied):
    x, mask = torch.randn(256, 512, 768, dtype=dtype), torch.ones(256, 512, dtype=dtype)
    compiled = forward(lambda x, mask: (x * mask[..., None]).sum(1), x, mask)
    assert (first(compiled).stages > 1) == is_copied


def test_weights_that_all_rows_share_do_not_keep_a_walk_from_copies():
    x, weight = torch.randn(64, 512, 768, dtype=torch.float16), torch.ones(512, dtype=torch.float16)
    assert first(forward(lambda x, w: (x * w[:, None]).sum(1), x, weight)).stages > 1


def test_columns_that_are_no_whole_words_are_not_copied():
    assert first(forward(lambda x: x.sum(0), torch.randn(4096, 8192))).stages > 1
    assert first(forward(lambda x: x.sum(0), torch.randn(4096, 8191))).stages == 1


def test_a_row_that_leaves_room_for_one_more_is_not_copied():
    """Two stages are slower than one."""
    way = first(forward(F.cross_entropy, torch.randn(2048, 12288), torch.zeros(2048, dtype=torch.int64)))
    assert way.stages == 1
    assert way.grid[0] > limits.MULTIPROCESSORS


def test_what_lies_apart_is_read_by_more_threads():
    def area(boxes):
        return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])

    assert first(forward(area, torch.randn(400000, 4))).warps == 16
    assert first(forward(lambda x: x[:, 0] * x[:, 1], torch.randn(400000, 2))).warps == 4  # pairs are read as one


def test_short_rows_that_are_no_whole_words_are_a_warps():
    assert first(forward(lambda x: x.softmax(-1), torch.randn(4096, 6, 49, 49))).warps == 1
    assert first(forward(lambda x: x.softmax(-1), torch.randn(4096, 6, 48, 48))).warps > 1


def test_tiles_follow_what_is_read_along_the_sum_if_nothing_is_read_as_a_whole():
    """As gradients of distances; along the sum, the other points lie apart."""
    given = torch.randn(1024, 1000), torch.randn(1024, 64), torch.randn(1000, 64)
    way = first(forward(lambda grad, x, y: (grad[..., None] * (x[:, None] - y)).sum(1), *given))
    assert way.row_block == 64
    assert way.warps == 8
