"""Inputs that a graph takes to be aligned are copied where they are not, whichever and however many they are."""

import pytest
import torch

from aotkit.backends.inductor_graphs.alignment import aligned


def _at(offset):
    """Four numbers that begin so many elements, 4 bytes each, behind a multiple of 16 bytes."""
    return torch.arange(8.0)[offset : offset + 4]


@pytest.mark.parametrize("checked", [(0,), (2,), (0, 1), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("odd", range(3))
def test_what_is_not_aligned_is_copied_and_nothing_else(checked, odd):
    inputs = [_at(1 if i == odd else 4) for i in range(3)]
    given = list(inputs)
    aligned(lambda seen: given.__setitem__(slice(None), seen), checked, set())(list(inputs))
    for i, (before, after) in enumerate(zip(inputs, given, strict=True)):
        assert torch.equal(before, after)
        assert (before.data_ptr() == after.data_ptr()) == (i != odd or i not in checked)


def test_what_is_written_to_a_copy_gets_to_the_input():
    x, y = _at(1), _at(4)
    aligned(lambda inputs: inputs[0].add_(inputs[1]), [0, 1], {0})([x, y])
    assert x.tolist() == [5.0, 7.0, 9.0, 11.0]


def test_without_anything_to_check_nothing_stands_in_between():
    def run(inputs):
        return inputs

    assert aligned(run, [], set()) is run
