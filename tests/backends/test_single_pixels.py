"""Images of one pixel under Inductor: they fit both layouts of images, and every window reaches beyond them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import aotkit
from aotkit.backends.inductor_graphs.large_windows import arguments, each
from aotkit.backends.inductor_graphs.padded_pixels import with_selected_pixels
from aotkit.backends.inductor_graphs.single_pixels import with_products_for_single_pixels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
aten = torch.ops.aten
CONVOLUTIONS = {
    "usual": lambda x, w: F.conv2d(x, w, padding=1),
    "strided": lambda x, w: F.conv2d(x, w, stride=2, padding=1),
    "dilated": lambda x, w: F.conv2d(x, w, padding=2, dilation=2),
    "to many pixels": lambda x, w: F.conv2d(x, w, padding=(3, 2)),
    "to many, strided": lambda x, w: F.conv2d(x, w, padding=5, stride=(2, 3)),
    "past the pixel": lambda x, w: F.conv2d(x, w, padding=3, stride=4),
    "in groups": lambda x, w: F.conv2d(x, w[:, :2], padding=1, groups=2),
    "of each channel": lambda x, w: F.conv2d(x, w[:, :1], padding=1, groups=4),
    "biased": lambda x, w: F.conv2d(x, w, w[:, 0, 0, 0], padding=1),
    "transposed": F.conv_transpose2d,
    "transposed, strided": lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1),
    "transposed, dilated": lambda x, w: F.conv_transpose2d(x, w, padding=1, dilation=2),
    "transposed, in groups": lambda x, w: F.conv_transpose2d(x, w, groups=2),
    "one value for both": lambda x, w: torch.convolution(x, w, None, [1], [1], [1], False, [0], 1),
    "one dimension": lambda x, w: F.conv1d(x[..., 0], w[..., 0], padding=1),
    "three dimensions": lambda x, w: F.conv3d(x[..., None], w[..., None].repeat(1, 1, 1, 1, 3), padding=1),
    "by name": lambda x, w: F.conv2d(x, w, padding="same"),
    "of no image": lambda x, w: F.conv2d(x[:0], w, padding=1),
}
POOLING = {
    "average": lambda x: F.avg_pool2d(x.relu(), 3, 1, 1),
    "average of what is there": lambda x: F.avg_pool2d(x.relu(), 3, 1, 1, count_include_pad=False),
    "largest": lambda x: F.max_pool2d(x.tanh(), 3, 1, 1),
    "padded": lambda x: F.pad(x.sin(), (1, 2, 1, 0)),
    "padded sum": lambda x: F.pad(x.sum(dim=(1, 2, 3)), (1, 0)),
    "shifted": lambda x: F.pad(x.exp(), (1, 0))[..., :1] + x,
}


WINDOWS = [
    dict(zip(("kernel_size", "stride", "padding"), sizes, strict=True))
    for sizes in ((3, 1, 1), (2, 1, 1), (4, 2, 2), ((3, 5), (1, 2), (0, 2)), ((2, 3), 3, (1, 1)))
]
AVERAGES = [{}, {"count_include_pad": False}, {"divisor_override": 5}]


def traced(function, x):
    table = with_selected_pixels({})
    return torch.fx.experimental.proxy_tensor.make_fx(lambda x: function(x), decomposition_table=table)(x)


@pytest.mark.thinned
@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 1, 1), (2, 3, 1, 9), (3, 8, 1)], ids=str)
def test_windows_have_no_padding_in_dimensions_of_one_place(shape, window, ceil):
    x = torch.randn(shape, dtype=torch.double)
    largest = F.max_pool2d_with_indices
    functions = [lambda x, more=more: F.avg_pool2d(x, **window, ceil_mode=ceil, **more) for more in AVERAGES]
    functions += [lambda x, gap=gap: largest(x, **window, ceil_mode=ceil, dilation=gap) for gap in (1, 2)]
    for function in functions:
        try:
            want = function(x)
        except RuntimeError:  # larger than the padded image
            continue
        graph = traced(function, x)
        for node in graph.graph.find_nodes(op="call_function", target=aten.avg_pool2d.default):
            padding = each(arguments(node.target, node.args, node.kwargs)["padding"], 2)
            assert all(p == 0 for n, p in zip(shape[-2:], padding, strict=True) if n == 1)
        torch.testing.assert_close(graph(x), want)


@pytest.mark.parametrize("amounts", [(1, 2), (1, 1, 2, 0), (-1, 2), (3, -1, 1, 1), (0, 0, 1, 0), (0, 2, 0, 0, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool], ids=str)
def test_padding_of_one_place_selects(amounts, dtype):
    x = torch.ones(1, 1, 3, 1, dtype=dtype)
    graph = traced(lambda x: F.pad(x, amounts, value=3), x)
    assert torch.equal(graph(x), F.pad(x, amounts, value=3))
    pads = graph.graph.find_nodes(op="call_function", target=aten.constant_pad_nd.default)
    assert len(pads) == any(amounts[2:4])  # only of the dimension of three places
    assert all(not any(pad.args[1][:2]) and not any(pad.args[1][4:]) for pad in pads)


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_gradients_of_convolutions_are_products(case):
    def f(x, w):
        y = CONVOLUTIONS[case](x, w)
        return (y * torch.arange(y.numel()).reshape(y.shape).cos()).sum()

    x, w = torch.randn(3, 4, 1, 1, dtype=torch.double), torch.randn(4, 4, 3, 3, dtype=torch.double)
    want = torch.func.grad(f, (0, 1))(x, w)
    table = with_products_for_single_pixels({})
    graph = torch.fx.experimental.proxy_tensor.make_fx(torch.func.grad(f, (0, 1)), decomposition_table=table)(x, w)
    assert torch.ops.aten.convolution_backward.default not in {node.target for node in graph.graph.nodes}
    torch.testing.assert_close(graph(x, w), want)


def test_other_images_keep_their_convolution():
    graph = torch.fx.experimental.proxy_tensor.make_fx(
        torch.func.grad(lambda x, w: F.conv2d(x, w, padding=1).sum(), (0, 1)),
        decomposition_table=with_products_for_single_pixels({}),
    )(torch.randn(3, 4, 1, 2), torch.randn(4, 4, 3, 3))
    assert torch.ops.aten.convolution_backward.default in {node.target for node in graph.graph.nodes}


def encoder():
    """The last stage of a residual network for small images."""

    def block(stride):
        convolution = nn.Conv2d(16, 16, 3, stride, 1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(16), nn.ReLU())

    return nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), block(2), block(2), block(1), block(1), nn.Flatten())


def decoder():
    """Of a world model, which begins with a pixel: pytorch/pytorch#171622."""
    layers = [nn.ConvTranspose2d(*sizes, stride=2) for sizes in ((64, 32, 5), (32, 16, 5), (16, 8, 6), (8, 3, 6))]
    return nn.Sequential(nn.Linear(8, 64), nn.Unflatten(1, (64, 1, 1)), *[m for x in layers for m in (x, nn.ReLU())])


@pytest.mark.thinned
@pytest.mark.parametrize("partition", ["min_cut", "nx_min_cut"])
@pytest.mark.parametrize(("net", "shape"), [(encoder, (4, 3, 8, 8)), (decoder, (4, 8))], ids=["encoder", "decoder"])
@pytest.mark.sweep
def test_networks_that_end_or_begin_with_one_pixel(net, shape, partition):
    model = net().to(DEVICE)
    fast = aotkit.compile(model, backend="inductor", partition=partition)
    x = torch.randn(shape, device=DEVICE)
    fast(x).square().sum().backward()
    assert fast.report(x).passed


@pytest.mark.thinned
@pytest.mark.parametrize("case", POOLING)
@pytest.mark.parametrize("channels", [1, 16])
def test_windows_over_what_was_computed_in_the_same_kernel(case, channels):
    x = torch.randn(4, channels, 1, 1, device=DEVICE, requires_grad=True)
    assert aotkit.check(POOLING[case], x, backend="inductor").passed
