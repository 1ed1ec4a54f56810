"""What is computed of large tensors in pieces."""

import math

import pytest
import torch

from aotkit.checking.in_pieces import CACHED, are_finite, checksum


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool]
)
@pytest.mark.parametrize("count", [1, CACHED, 3 * CACHED + 5])
def test_a_checksum_depends_on_every_bit_and_its_place(dtype, count):
    values = torch.arange(count).remainder(2).to(dtype)
    first = checksum(values)
    assert checksum(values.clone()) == first
    changed = values.clone()
    changed[-1] = 1 - changed[-1].int()
    assert checksum(changed) != first
    if count > 1:  # neighbours change places within a part that is summed at once, and across two of them
        for at in (0, min(CACHED, count - 1) - 1):
            moved = values.clone()
            moved[at], moved[at + 1] = values[at + 1], values[at]
            assert checksum(moved) != first


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.float8_e5m2])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_value_that_is_not_finite_is_found_wherever_it_is(dtype, value):
    for at in (0, 6, 11):
        values = torch.ones(3, 4)
        assert are_finite(values.to(dtype))
        values.view(-1)[at] = value
        assert not are_finite(values.to(dtype))
        assert not are_finite(values.to(dtype).t())


def test_no_value_is_finite_and_so_are_integers():
    assert are_finite(torch.ones(0))
    assert are_finite(torch.arange(3))
    assert are_finite(torch.tensor(True))


def test_values_with_gradients_are_read_without_a_warning():
    """Such are the outputs that the check looks at; else torch warns its user, once in a process."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        assert are_finite(torch.ones(3, requires_grad=True) * 2)
    finally:
        torch.set_warn_always(before)
