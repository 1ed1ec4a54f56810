"""Inputs with strides, and results in the layout of ATen's."""

import pytest
import torch

import aotkit
from tests.backends.interpreted.comparing import IS_INTERPRETED, agree, comparing, fused, train

LAYOUTS = {
    "dense": lambda: torch.randn(2, 3, 4, 5),
    "transposed": lambda: torch.randn(5, 3, 4, 2).transpose(0, 3),
    "permuted": lambda: torch.randn(4, 2, 5, 3).permute(1, 3, 0, 2),
    "expanded": lambda: torch.randn(2, 1, 4, 1).expand(2, 3, 4, 5),
    "one value": lambda: torch.randn(()).expand(2, 3, 4, 5),
    "a part": lambda: torch.randn(3, 4, 6, 9)[1:, :3, 1:5, 2:7],
    "every second": lambda: torch.randn(4, 3, 8, 5)[::2, :, ::2],
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "overlapping": lambda: torch.randn(40).as_strided((2, 3, 4, 5), (6, 5, 3, 1), 2),
}


def function(x, y):
    return x * 2, (x + y).softmax(-1), (x * y).sum(1), x.amax((0, 2)) + 1, x.transpose(1, 2) * y.transpose(1, 2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_with_strides(layout):
    x = LAYOUTS[layout]()
    agree(function, x, torch.randn(2, 3, 4, 5))
    agree(lambda y, x: y * x, torch.randn(2, 3, 4, 5), x)
    agree(lambda x: x * x.sum((1, 3), keepdim=True), x)


def test_a_compiled_function_meets_other_layouts():
    regions = []
    fn = aotkit.compile(lambda x: x.exp().sum(0), backend=comparing(regions), check=False)
    for x in (torch.randn(4, 6), torch.randn(6, 4).t(), torch.randn(8, 12)[::2, ::2], torch.randn(1, 6).expand(4, 6)):
        fn(x)
    assert regions


def test_gradients_that_are_expanded():
    regions = []
    x = torch.randn(4, 6, requires_grad=True)
    aotkit.compile(lambda x: (x * x).sin(), backend=comparing(regions), check=False)(x).sum().backward()
    assert len(regions) == 2


def test_a_tensor_along_two_dimensions():
    """One loop for both would walk the diagonal."""
    x, y = torch.randn(5), torch.randn(3, 5, 7)
    agree(lambda x: x[:, None] * x, x)
    agree(lambda x: (x[:, None] - x).exp().sum(1), x)
    agree(lambda x: torch.where(x > 0, x[:, None], x), x)
    agree(lambda y: (y[:, :, None] - y[:, None]).square().sum(-1), y)
    agree(lambda y: torch.where(y[0] > 0.1, y[:, :, None], y[0]).amax(1), y)


@pytest.mark.parametrize("part", [slice(0, 1), slice(0, 3), slice(1, 3), slice(2, 5), 0], ids=str)
def test_a_part_of_what_a_whole_row_is_needed_for(part):
    agree(lambda x: x.softmax(1)[:, part], torch.randn(4, 5))
    agree(lambda x: (x - x.mean(1, keepdim=True))[:, part].exp() * 2, torch.randn(4, 5))


def test_sums_along_both_axes_of_a_square_are_added():
    agree(lambda x: x.sum(0) + x.sum(1), torch.randn(7, 7))
    agree(lambda x, w: (x[:, :, None] * w * 2).sum(1) + (w * x[:, None]).sum(2), torch.randn(3, 7), torch.randn(7, 7))


def test_strides_that_are_a_view():
    agree(lambda x: (x * 2).as_strided((6, 4), (4, 1)).exp(), torch.randn(2, 3, 4))


def windows(x):
    return x.view(2, 3, 4, 3, 4, 5).permute(0, 1, 3, 2, 4, 5).contiguous()


def merged(x):
    return x.transpose(0, 1).reshape(12, 5)


PARTS = {
    "windows of what is shifted": lambda x: windows(torch.roll(x * 2, (-2, -2), (1, 2))),
    "what is shifted of windows": lambda x: torch.roll(
        (windows(x) * 2).permute(0, 1, 3, 2, 4, 5).reshape(x.shape), 5, 1
    ),
    "a part of it": lambda x: merged(x[0, :3, :4] * 2)[1:10],
    "a part of a part": lambda x: merged(x[0, :3, :4])[1:10][2:6].exp(),
    "parts, joined": lambda x: torch.cat((merged(x[0, :3, :4])[2:9], merged(x[1, :3, :4])[5:11])) * 2,
    "padded": lambda x: torch.nn.functional.pad(merged(x[0, :3, :4])[1:10], (1, 0, 2, 1)).sin(),
    "normalised": lambda x: merged(x[0, :3, :4].softmax(-1))[1:10] * 2,
    "added up": lambda x: merged(x[0, :3, :4].square())[1:10].sum(0),
    "with positions": lambda x: merged(x[0, :3, :4] + torch.arange(4)[:, None])[1:10] * 2,
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_that_do_not_end_where_axes_do(name):
    train(PARTS[name], torch.randn(2, 12, 12, 5, requires_grad=True))


@pytest.mark.parametrize("shuffle", [torch.nn.functional.pixel_shuffle, torch.nn.functional.pixel_unshuffle])
def test_parts_that_take_turns_are_walked_in_their_order(shuffle):
    regions = train(lambda x: shuffle(x, 2).exp(), torch.randn(2, 8, 6, 10, requires_grad=True))
    if IS_INTERPRETED:
        (forward, *_) = (launch.schedule for region in regions for launch in fused(region).launches)
        assert len(forward.inner) == 5


def test_arithmetic_of_booleans_is_logic():
    x, y = torch.randn(4, 6) > 0, torch.randn(4, 6) > 0
    agree(lambda x, y: (x * y, x + y, torch.maximum(x, y), torch.minimum(x, y)), x, y)
