"""Images of one pixel, whose strides say nothing about where their values are, and decide on the layout of results."""

import pytest
import torch
from torch import nn

import aotkit
from aotkit.aot.single_pixels import with_exact_strides

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def network():
    """The last stage of a residual network for small images."""

    def block(stride):
        convolution = nn.Conv2d(16, 16, 3, stride, 1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(16), nn.ReLU())

    return nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), block(2), block(2), block(1), block(1), nn.Flatten())


@pytest.mark.parametrize("partition", ["min_cut", "nx_min_cut"])
def test_a_network_that_shrinks_images_to_one_pixel(partition):
    net = network().to(DEVICE)
    fast = aotkit.compile(net, backend="inductor", partition=partition)
    x = torch.randn(4, 3, 8, 8, device=DEVICE)
    fast(x).square().sum().backward()
    assert fast.report(x).passed


def gradient_of_weight(gradient, image, weight):
    options = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False])
    return torch.ops.aten.convolution_backward.default(gradient, image, weight, *options)[1]


def traced(*args):
    return torch.fx.experimental.proxy_tensor.make_fx(gradient_of_weight, tracing_mode="fake")(*args)


@pytest.mark.parametrize("given", [(8, 1, 1, 1), (8, 1, 8, 8), (99, 1, 5, 7)])
@pytest.mark.parametrize("promised", [(8, 1, 1, 1), (8, 1, 8, 8)])
def test_a_graph_gets_them_with_the_strides_that_it_was_compiled_for(given, promised):
    image = torch.randn(4, 8, 1, 1).as_strided((4, 8, 1, 1), promised)
    gradient, weight = torch.randn(4, 8, 1, 1), torch.randn(8, 8, 3, 3)
    graph = traced(gradient, image, weight)
    seen = []
    (run,) = with_exact_strides(graph, (gradient, image, weight), lambda inputs: seen.extend(inputs))
    other = torch.zeros(500).as_strided((4, 8, 1, 1), given).copy_(image)
    run([gradient, other, weight])
    assert seen[1].stride() == (given[0], *promised[1:])
    assert torch.equal(seen[1], image)


def test_other_graphs_are_called_as_they_are():
    def run(inputs):
        return inputs

    image, weight = torch.randn(4, 8, 2, 1), torch.randn(8, 8, 3, 3)
    assert with_exact_strides(traced(image, image, weight), (image, image, weight), run) == (run,)
    pixel, point = torch.randn(4, 8, 1, 1), torch.randn(8, 8, 1, 1)
    graph = torch.fx.experimental.proxy_tensor.make_fx(lambda x, w: torch.conv2d(x, w))(pixel, point)
    assert with_exact_strides(graph, (pixel, point), run) == (run,)
