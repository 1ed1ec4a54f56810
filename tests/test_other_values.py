"""The values and sizes of a check's second run: others, in the range of the first ones."""

import pytest
import torch

import aotkit
from aotkit.other_values import far_values, near_values, resized

KINDS = {
    "floats": torch.randn(200),
    "probabilities": torch.rand(200),
    "complex": torch.randn(200, dtype=torch.complex64),
    "half": torch.randn(200).half(),
    "indices": torch.randint(0, 50, (20,)),
    "mask": torch.zeros(20, dtype=torch.bool),
    "labels": torch.tensor([3, -100, 0, 7, 3, -100]),
    "bytes": torch.arange(256).to(torch.uint8),
}


@pytest.mark.parametrize("values", KINDS.values(), ids=KINDS)
def test_far_values_are_others_of_the_same_range(values):
    others = far_values(values)
    assert others.dtype is values.dtype
    assert not torch.equal(others, values)
    if values.dtype is torch.bool:
        return
    size = values.abs() if values.is_complex() else values
    other_size = others.abs() if others.is_complex() else others
    largest = size.abs().max()
    assert other_size.abs().max() <= largest
    assert bool((size < 0).any()) or not bool((other_size < 0).any())


def test_what_was_equal_stays_equal_and_different_different():
    values = torch.tensor([5, 2, 5, 0, 9])
    pattern = values[:, None] == values
    assert torch.equal(far_values(values)[:, None] == far_values(values), pattern)


@pytest.mark.parametrize("values", [torch.tensor([0, 7, 12, 30]), torch.tensor([-100, -1])], ids=str)
def test_limits_of_ranges_and_negative_integers_stay(values):
    assert torch.equal(far_values(values), values)


def test_near_values_keep_signs_and_integers():
    x = torch.randn(100)
    assert torch.equal(near_values(x).sign(), x.sign())
    assert bool((near_values(x).abs() >= 0.75 * x.abs()).all())
    assert torch.equal(near_values(torch.arange(5)), torch.arange(5))


def test_resized():
    x = torch.randn(2, 3, requires_grad=True)
    (y,) = resized([x], [([3, 3], [1, 4])])
    assert (y.shape, y.stride(), y.requires_grad) == ((3, 3), (1, 4), True)
    assert set(y.flatten().tolist()) <= set(x.flatten().tolist())


def test_a_function_that_does_not_take_other_signs_gets_near_values():
    seen = []

    def compile(gm, example_inputs):
        return lambda x, signs: seen.append(x.clone()) or gm(x, signs)

    x = torch.randn(50)
    assert aotkit.check(lambda x, signs: (x * signs).log(), x, x.sign(), backend=compile).repeated
    assert all(torch.equal(values.sign(), x.sign()) for values in seen)
