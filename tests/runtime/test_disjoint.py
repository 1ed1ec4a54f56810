"""Inputs that lie apart in memory are told from those that do not, however they move between calls."""

import numpy as np
import pytest
import torch

from aotkit.runtime.disjoint import Apart

pytestmark = pytest.mark.parametrize("in_tier", ["python", "native"], indirect=True)


def test_whatever_moves_is_looked_at_again():
    apart = Apart()
    stays, other = torch.zeros(8), torch.zeros(8)
    for _ in range(3):
        assert apart([stays, torch.zeros(4), other, 3, None])
    assert not apart([stays, other[2:], other, 3, None])
    assert not apart([stays, stays[:0].new_zeros(4).set_(stays[1:4]), other, 3, None])
    assert not apart([stays, torch.from_dlpack(other), other, 3, None])
    assert apart([stays, torch.zeros(4), torch.zeros(8), 3, None])  # what had stayed moves
    assert not apart([stays, other, other, 3, None])
    assert not apart([stays, stays, other, 3, None])
    assert apart([stays, torch.zeros(4), other, 3, None])


def test_one_memory_from_the_start():
    apart, array = Apart(), np.zeros(4, np.float32)
    assert not apart([torch.from_numpy(array), torch.from_numpy(array)])
    assert not Apart()([whole := torch.zeros(6), whole[2:]])
    assert Apart()([torch.zeros(0), torch.zeros(0)])


def test_a_storage_counts_as_a_whole():
    whole = torch.zeros(10)
    assert not Apart()([whole[:2], whole[5:]])


def test_what_grows_where_it_is_moves():
    apart, array = Apart(), np.zeros(200, np.float32)
    other = torch.from_numpy(array[16:21])
    assert apart([torch.from_numpy(array[:8]), other])
    assert apart([torch.from_numpy(array[:8]), other])
    assert not apart([torch.from_numpy(array[:40]), other])
    assert not apart([torch.from_numpy(array[:24:3]), other])  # as many elements, farther apart


def test_numbers_in_between_and_other_strides():
    inputs = [torch.zeros(4), 3, torch.zeros(6)[::2], torch.zeros(2, 3)]
    apart = Apart()
    assert apart(inputs)
    assert apart([torch.zeros(4), None, torch.zeros(3), inputs[3]])
    assert apart((torch.zeros(4), None, torch.zeros(3), torch.zeros(3, 2).t()))
    assert not apart([inputs[3].view(-1), 3, torch.zeros(3), inputs[3]])
