"""Functions that torch's rules for tracing take apart, and that stay what they are in eager."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import aotkit

SHAPES = {1: (2, 3, 9), 2: (2, 3, 5, 6), 3: (2, 3, 3, 4, 5)}
RESIZES = [
    ("nearest", 1, {"scale_factor": 2.0}), ("linear", 1, {"size": 7}), ("nearest", 2, {"scale_factor": 2}),
    ("nearest", 2, {"size": (7, 3)}), ("nearest", 2, {"scale_factor": (0.7, 1.3)}),
    ("nearest-exact", 2, {"scale_factor": (0.7, 1.3)}), ("bilinear", 2, {"scale_factor": 2}),
    ("bilinear", 2, {"size": (7, 3), "align_corners": True}), ("bilinear", 2, {"size": (3, 3), "antialias": True}),
    ("bicubic", 2, {"size": (3, 3), "antialias": True}), ("area", 2, {"size": (3, 3)}),
    ("nearest", 3, {"scale_factor": 2}), ("trilinear", 3, {"scale_factor": 2}),
]  # fmt: skip


def resizing(mode, options):
    return lambda x: F.silu(F.interpolate(x * 2, mode=mode, **options))


def gradients(gm):
    return [str(node.target) for node in gm.graph.nodes if "backward" in str(node.target)]


@pytest.mark.thinned
@pytest.mark.parametrize("capture", ["aot", "dynamo"])
@pytest.mark.parametrize(("mode", "dimensions", "options"), RESIZES)
def test_resized_images_have_atens_own_gradients(mode, dimensions, options, capture):
    fn, x = resizing(mode, options), torch.randn(SHAPES[dimensions], requires_grad=True)
    fast = aotkit.compile(fn, backend="fuser", capture=capture)
    want, got = fn(x), fast(x)
    torch.testing.assert_close(got, want)
    assert got.stride() == want.stride()
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x)[0] for y in (got, want)))
    backward = fast.graphs(x).backward
    assert not [node for node in backward.graph.nodes if "index_put" in str(node.target)]
    assert any("upsample" in name or "pool" in name for name in gradients(backward))


@pytest.mark.parametrize("options", [{"scale_factor": 2}, {"scale_factor": (0.7, 1.3)}])
def test_inductors_gradients_of_nearest_pixels_are_eagers(options):
    fn, x = resizing("nearest", options), torch.randn(SHAPES[2], dtype=torch.bfloat16, requires_grad=True)
    got = aotkit.compile(fn, backend="inductor")(x)
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x)[0] for y in (got, fn(x))))


def test_sizes_may_be_open():
    fn = resizing("bilinear", {"scale_factor": 2})
    fast = aotkit.compile(fn, backend="nop", dynamic=True)
    for size in (5, 6, 8):
        x = torch.randn(size, 3, 4, 4, requires_grad=True)
        torch.testing.assert_close(*(torch.autograd.grad(f(x).sum(), x)[0] for f in (fast, fn)))
    assert fast.explain(x).entries == 1


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 3)

    def forward(self, x):
        return torch.relu(self.linear(x) * 2)


class Tagger(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.head = layer(4, 8, batch_first=True), Head()

    def forward(self, x):
        return self.head(self.layer(x)[0])


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("layer", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_layers_are_not_unrolled(layer):
    m, x = Tagger(layer), torch.randn(2, 50, 4)
    fast = aotkit.compile(m, backend="nop")
    torch.testing.assert_close(fast(x), m(x))
    explanation = fast.explain(x)
    assert explanation.capture == "dynamo"
    assert "'layer' is a recurrent layer" in explanation.handed_over
    (graphs,) = explanation.all_graphs
    assert len(graphs.forward.graph.nodes) < 20


def test_they_are_where_that_is_asked_for():
    m, x = Tagger(nn.LSTM), torch.randn(2, 3, 4)
    fast = aotkit.compile(m, backend="nop", capture="aot")
    torch.testing.assert_close(fast(x), m(x))
    assert fast.explain(x).pieces == 1


class AttendsToPixels(nn.Module):
    """As those of diffusers do: pixels become rows, and an image again."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8)

    def forward(self, x):
        x = self.conv(x)
        rows = x.flatten(2).transpose(1, 2).softmax(1).contiguous()
        return self.norm((rows.transpose(1, 2).reshape(x.shape) + x) / 2.0) * 2


@pytest.mark.parametrize("capture", ["aot", "dynamo"])
@pytest.mark.parametrize("count", [1, 2])
def test_one_image_that_was_rows_is_laid_out_as_in_eager(count, capture):
    """Tracing took one for an image with its channels last; in eager, the norm makes it contiguous."""
    model, x = AttendsToPixels(), torch.randn(count, 3, 4, 4)
    want = model(x)
    fast = aotkit.compile(model, backend="nop", capture=capture)
    got = fast(x)
    assert torch.allclose(got, want, atol=1e-5)
    assert got.stride() == want.stride()
    got.sum().backward()
