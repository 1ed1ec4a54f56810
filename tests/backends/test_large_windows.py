"""Pooling under Inductor in windows that are larger than the image."""

import pytest
import torch
from torch.nn import functional as F

import aotkit

CASES = {
    "average": lambda x: F.avg_pool2d(x, 1280, ceil_mode=True),
    "overhanging": lambda x: F.avg_pool2d(x, 4, ceil_mode=True),
    "overhanging, padded": lambda x: F.avg_pool2d(x, 5, stride=3, padding=2, ceil_mode=True),
    "in one dimension": lambda x: F.avg_pool2d(x, (3, 900), ceil_mode=True),
    "strided": lambda x: F.avg_pool2d(x, 12, stride=6, ceil_mode=True),
    "padded": lambda x: F.avg_pool2d(x, 40, padding=5, ceil_mode=True),
    "without padding": lambda x: F.avg_pool2d(x, 40, padding=5, ceil_mode=True, count_include_pad=False),
    "own divisor": lambda x: F.avg_pool2d(x, 40, ceil_mode=True, divisor_override=3),
    "three dimensions": lambda x: F.avg_pool3d(x, (2, 6, 4), ceil_mode=True),
    "one dimension": lambda x: F.avg_pool1d(x[0], 5000, ceil_mode=True),
    "largest": lambda x: F.max_pool2d(x, 1280, ceil_mode=True),
    "largest, padded": lambda x: F.max_pool2d(x, (30, 3), padding=1, ceil_mode=True),
    "largest, with gaps": lambda x: F.max_pool2d(x, 5, dilation=3, stride=9, ceil_mode=True),
    "largest, three dimensions": lambda x: F.max_pool3d(x, (2, 6, 4), ceil_mode=True),
    "where it is": lambda x: F.max_pool2d(x, 300, ceil_mode=True, return_indices=True)[0],
}
RESEMBLING = {
    *("overhanging", "in one dimension", "strided", "padded", "without padding"),
    *("largest", "largest, with gaps", "largest, three dimensions"),
}


@pytest.mark.thinned
@pytest.mark.parametrize("case", [pytest.param(c, marks=pytest.mark.sweep if c in RESEMBLING else []) for c in CASES])
def test_a_window_larger_than_the_image_is_as_in_eager(case):
    x = torch.randn(2, 4, 9, 7, requires_grad=True)
    fast = aotkit.compile(CASES[case], backend="inductor")
    assert fast(x).shape == CASES[case](x).shape
    assert fast.report(x).passed


def test_the_place_of_the_largest_is_that_in_the_image():
    x = torch.randn(2, 4, 9, 7)
    fast = aotkit.compile(lambda x: F.max_pool2d(x, 300, ceil_mode=True, return_indices=True), backend="inductor")
    assert torch.equal(fast(x)[1], F.max_pool2d(x, 300, ceil_mode=True, return_indices=True)[1])
