"""Functions whose graphs are looked into: each with its inputs, and returning one number."""

import torch
from torch import nn
from torch.nn import functional as F

from aotkit.benchmark.workloads import tutorial, tutorial_inputs
from aotkit.launches.kernels import Kernels, Launched
from aotkit.stages import Kernel


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.project, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        return self.merge((scores @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x):
        x = x + self.attention(self.before(x))
        return x + self.mlp(self.between(x))


class Transformer(nn.Module):
    """GPT-2 in small: tokens -> the loss of predicting them."""

    def __init__(self, layers=2, width=32, heads=2, words=64):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.last = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        logits = self.last(x) @ self.words.weight.t()
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))

    def forward(self, images):
        return self.layers(images).square().mean()


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.2)) for _ in range(4)])

    def forward(self, x):
        return self.layers(x).square().mean()


def views(x, weight):
    """Saves parts of one storage, a view of an input, and an input."""
    left, right = (x @ weight.t()).exp().chunk(2, -1)
    return (left * right.sin()).sum()


def tutorial_loss(a, b, c, d):
    return tutorial(a, b, c, d).mean()


def kernels_of(graphs, *groups, name="kernel"):
    """What `explain` would have found: kernels of forward with these operations, each of which holds 100 bytes more."""
    launched = [
        Launched("forward", Kernel(name, tuple(names), "C++"), tuple(names), (), (), 0, 0, 1e-6, 100 * (i + 1), "")
        for i, names in enumerate(groups)
    ]
    return Kernels(graphs, tuple(launched), {"forward": {}}, {}, None, 100 * len(groups), False, "cpu", None)


def leaves(*shapes):
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


MODELS = {
    "tutorial": lambda: (tutorial_loss, [x.detach().requires_grad_() for x in tutorial_inputs(64, 128)]),
    "views": lambda: (views, leaves((64, 32), (48, 32))),
    "perceptron": lambda: (Perceptron(), [torch.randn(32, 64)]),
    "convolution": lambda: (Convolution(), [torch.randn(4, 3, 32, 32)]),
    "transformer": lambda: (Transformer(), [torch.arange(64).reshape(2, 32)]),
    "norm": lambda: (lambda x, w: F.layer_norm(x, x.shape[1:], w).softmax(-1).log().mean(), leaves((128, 64), (64,))),
}
