"""Elements that are read by index, of GPUs' kernels: on a CPU ATen reads them, which raises an error out of range."""

import pytest
import torch
from torch.nn import functional as F

from tests.backends.interpreted.comparing import ENGINE, IS_INTERPRETED, agree, compiled, fused

pytestmark = pytest.mark.skipif(not IS_INTERPRETED, reason="kernels in C++ do not read by index")


def rows(n, *shape):
    return torch.randint(0, n, shape)


def test_rows():
    w, x, i = torch.randn(7, 6), torch.randn(5, 4, 6), rows(7, 5, 4)
    agree(lambda w, x, i: F.layer_norm(F.embedding(i, w) + x, (6,)), w, x, i)
    agree(lambda w, i: torch.relu(w[i]), w, i.int())
    agree(lambda w, i: F.embedding(i, w.t()).sum(-1), torch.randn(6, 7), i)
    agree(lambda w, i: w.index_select(1, i) * 2, w, rows(6, 9))
    agree(lambda w, i: w.index_select(-1, i) + w[:, i], w.half(), rows(6, 1))
    agree(lambda w, i, j: w[i] * w[j], w, rows(7, 4), rows(7, 3, 4))


def test_several_indices_and_dimensions_between_them():
    x = torch.randn(5, 6, 7, 4)
    i, j = rows(5, 3), rows(7, 2, 3)
    agree(lambda x, i, j: x[i, :, j] * 2, x, i, j)
    agree(lambda x, j: x[:, :, j].exp(), x, j)
    agree(lambda x, i: x[:, i, i + 1] + 1, x, i)
    agree(lambda x, i: x[i, i, i, i.clamp(max=3)] + 1, x, rows(4, 2, 1))
    agree(lambda x, i: x[i, 2] + x[:, 2, i[:, None]].sum(), x, i)


def test_negative_indices_count_from_the_end():
    agree(lambda x, i: x[i] * 2, torch.randn(5, 3), torch.tensor([-1, 0, -5, 4]))


def test_indices_that_are_computed():
    x = torch.randn(6, 6)
    agree(lambda x: x[(x[0] > 0).long() * 2 + 1] + x, x)
    agree(lambda x: (x * 2)[(x[:, 1] * 2).abs().long().clamp(max=5)], x)
    agree(lambda x: x[torch.arange(5).abs() // 2, :, None] * 2, x)
    agree(lambda x: x[:, torch.arange(6) // 2] * x, x)


def test_for_each_position_another_index():
    x = torch.randn(4, 6, 5)
    agree(lambda x, i: x.gather(1, i) * 2, x, rows(6, 4, 9, 5))
    agree(lambda x, i: (x.exp().gather(2, i) + i).sum(2), x, rows(5, 4, 6, 3))
    agree(lambda x, i: x.gather(0, i) * x, x, rows(4, 4, 6, 5))
    agree(lambda x: x.gather(-1, (x > 0).long()), x)
    agree(lambda x, i: torch.take_along_dim(x, i, 1) + 1, torch.randn(1, 6, 1), rows(6, 1, 3, 1))


def test_a_tensor_and_parts_of_it():
    x, i = torch.randn(8, 6), rows(8, 8)
    agree(lambda x, i: x[i] - x, x, i)
    agree(lambda x, i: (x[i].t() * x[:6, :1]).sum(1), x, i)
    agree(lambda x, i: torch.cat([x[i][:, 2:], x[i, :2]], 1) * x, x, i)
    agree(lambda x, i: (x.view(2, 4, 6)[:, i] * x.view(2, 1, 4, 6)[:, :, :1]).sum(-1), x, rows(4, 3))
    agree(lambda x, i: F.pad(x[i], (1, 2))[:, 2:] * 2, x, i)


def test_beyond_the_range_is_nan():
    region, _ = compiled(lambda x, i: (x[i] * 2, x.gather(1, i[:, None].expand(-1, 2))), torch.randn(3, 2), rows(2, 3))
    x = torch.randn(3, 2)
    taken, gathered = region([x, torch.tensor([3, -4, 1])])
    assert taken.isnan().all(1).tolist() == [True, True, False]
    assert gathered.isnan().all(1).tolist() == [True, True, False]
    assert torch.equal(taken[2], x[1] * 2)


def test_it_is_one_kernel():
    region, _ = compiled(lambda w, i: F.layer_norm(F.embedding(i, w), (8,)), torch.randn(9, 8), rows(9, 16))
    assert len(fused(region).launches) == 1


def test_what_would_add_up_a_row_for_each_index_is_not_taken():
    with pytest.raises(Exception, match="a reduction is a part of"):
        compiled(lambda x, i: x.softmax(-1)[i], torch.randn(4, 6), rows(4, 9))
    assert ENGINE.indexes
