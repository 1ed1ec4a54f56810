"""The values and sizes of a check's second run: others, in the range of the first ones."""

import pytest
import torch

import aotkit
from aotkit.checking.other_values import far_values, near_values, resized

KINDS = {
    "floats": torch.randn(200),
    "probabilities": torch.rand(200),
    "complex": torch.randn(200, dtype=torch.complex64),
    "mostly positive": torch.rand(200) * 1.1 - 0.2,
    "half": torch.randn(200).half(),
    "indices": torch.randint(0, 50, (20,)),
    "mask": torch.arange(20) % 3 == 0,
    "labels": torch.tensor([3, -100, 0, 7, 3, -100]),
    "bytes": torch.arange(256).flip(0).to(torch.uint8),
}


@pytest.mark.parametrize("values", KINDS.values(), ids=KINDS)
def test_far_values_are_others_of_the_same_range(values):
    others = far_values(values)
    assert others.dtype is values.dtype
    assert not torch.equal(others, values)
    if values.dtype is torch.bool:
        assert others.sum() == values.sum()
        return
    size = values.abs() if values.is_complex() else values
    other_size = others.abs() if others.is_complex() else others
    assert min(size.min(), 0) <= other_size.min()
    assert other_size.max() <= size.max()


def test_what_was_equal_stays_equal_and_different_different():
    values = torch.tensor([5, 2, 5, 0, 9])
    pattern = values[:, None] == values
    assert torch.equal(far_values(values)[:, None] == far_values(values), pattern)


@pytest.mark.parametrize("values", [torch.tensor([4, 7, 12, 30]), torch.tensor([-1, -100])], ids=str)
def test_limits_of_ranges_and_negative_integers_stay(values):
    assert torch.equal(far_values(values), values)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="indices out of range end the process on CUDA only")
@pytest.mark.parametrize("values", [torch.tensor([5, 2, 9]), torch.tensor([True, False])], ids=str)
def test_indices_and_masks_stay_on_cuda(values):
    assert torch.equal(far_values(values.cuda()).cpu(), values)


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


def test_resized_views():
    """They begin where they did, stay what they are, and one tensor stays one."""
    x = torch.randn(10, 10)[2:5, 3:7]
    z = torch.randn(3, dtype=torch.complex64).conj()
    y, again, conjugated = resized([x, x, z], [([4, 4], [10, 1]), ([4, 4], [10, 1]), ([4], [1])])
    assert y is again
    assert y.storage_offset() == x.storage_offset()
    assert conjugated.is_conj()
    inner = torch.randn(3, requires_grad=True) * 2
    (other,) = resized([inner], [([4], [1])])
    assert (other.is_leaf, other.requires_grad) == (False, True)
    assert resized([x, x[0]], [([4, 4], [10, 1]), ([4], [1])]) is None


def test_a_function_that_does_not_take_other_signs_gets_near_values():
    seen = []

    def compile(gm, example_inputs):
        return lambda x, signs: seen.append(x.clone()) or gm(x, signs)

    x = torch.randn(50)
    assert aotkit.check(lambda x, signs: (x * signs).log(), x, x.sign(), backend=compile).repeated
    assert all(torch.equal(values.sign(), x.sign()) for values in seen)
