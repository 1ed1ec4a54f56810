"""Functions and modules that people train, small enough to compile in no time, and inputs for them."""

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from aotkit.testing.case import Case, Inputs

Pair = namedtuple("Pair", ["first", "second"])


CASES: list[Case] = []


def case(inputs: Callable[[Inputs], tuple[Any, ...]], factory: bool = False) -> Callable[[Any], Any]:
    """Add the function below; or the module class, or the function's factory, to be built on a device."""

    def add(what: Any) -> Any:
        def build(device: torch.device) -> Any:
            if isinstance(what, type):
                return what().to(device)
            return what(device) if factory else what

        CASES.append(Case(what.__name__, build, inputs))
        return what

    return add


def simple(name: str, function: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
    """Add a function of float tensors that all require gradients."""
    CASES.append(Case.of(name, function, lambda new: tuple(new.normal(*shape) for shape in shapes)))


# Pointwise functions and reductions.

simple("pointwise_chain", lambda a, b, c, d: (a + b + c + d).cos().cos(), *[(4, 8)] * 4)
simple("activations", lambda x: F.silu(x) + F.softplus(x) * F.leaky_relu(x) + x.sigmoid().clamp(0.2, 0.8), (4, 8))
simple("broadcasting", lambda a, b, c: (a * b + c).tanh(), (4, 1, 3), (5, 1), (3,))
simple("zero_dim", lambda a, b: a.exp() * b, (), ())
simple("zero_size", lambda a, b: (a.sin() @ b, a.sum()), (0, 4), (4, 3))
simple("softmax", lambda x: x.softmax(-1), (4, 9))
simple("log_softmax", lambda x: x.log_softmax(0), (4, 9))
simple("statistics", lambda x: (x.var(0), x.std(1, correction=0), x.norm(), x.logsumexp(1), x.amax(1)), (4, 6))
simple("products", lambda x: (x.prod(1), x.cumprod(0), x.cumsum(1) * x), (4, 5))
simple("layer_norm", lambda x, w, b: F.layer_norm(x, (8,), w, b), (4, 8), (8,), (8,))
simple("rms_norm", lambda x, w: F.rms_norm(x, (8,), w, 1e-6), (4, 8), (8,))
simple("group_norm", lambda x, w, b: F.group_norm(x, 2, w, b), (2, 4, 5), (4,), (4,))
simple("where", lambda a, b: torch.where(a > b, a.sin(), b * 2), (4, 8), (4, 8))
simple("masked_fill", lambda x: (x @ x.t()).masked_fill(torch.ones_like(x @ x.t()).triu(1) > 0, -1e4).exp(), (5, 3))
simple("sort_and_topk", lambda x: (x.sort(1).values.cumsum(1), *x.topk(3, dim=1)), (4, 8))


# Matrix products and convolutions.

simple("einsum", lambda a, b: torch.einsum("bij,bkj->bik", a, b).relu(), (2, 3, 4), (2, 5, 4))
simple("gelu_mlp", lambda x, w, v: x + F.gelu(x @ w) @ v, (4, 8), (8, 16), (16, 8))
simple("max_pool", lambda x: F.max_pool2d(x, 2) * F.avg_pool2d(x, 2), (1, 2, 6, 6))
simple("interpolate", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear").sin(), (1, 2, 4, 4))
simple("conv1d_padded", lambda x, w: F.conv1d(F.pad(x, (2, 0)), w).tanh(), (2, 3, 7), (4, 3, 3))


@case(lambda new: (new.normal(2, 5, 8), new.normal(8, 24)))
def attention(x, w):
    q, k, v = (part.view(2, 5, 2, 4).transpose(1, 2) for part in (x @ w).chunk(3, dim=-1))
    return ((q @ k.transpose(-2, -1) / 2).softmax(-1) @ v).transpose(1, 2).reshape(2, 5, 8)


simple(
    "scaled_dot_product_attention",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.0, is_causal=True),
    *[(2, 2, 5, 4)] * 3,
)


# Indexing and shapes.

simple("views", lambda x: (x.t().reshape(2, -1)[:, ::2] * 2, x.flip(0).roll(1, 1).unflatten(1, (2, 3))), (4, 6))
simple("expand", lambda x, w: x[:, None].expand(4, 3, 5).permute(1, 0, 2) * w, (4, 5), (3, 1, 5))
simple("cat_and_split", lambda a, b: [p.sin() for p in torch.cat([a, b, a], 1).split([2, 5, 2], 1)], (4, 3), (4, 3))


@case(lambda new: (new.normal(6, 4), new.integers(6, 5), new.integers(4, 5)))
def advanced_indexing(x, rows, columns):
    return x[rows] * x[rows, columns].unsqueeze(1), x.index_select(1, columns), x[:, [0, 2]]


@case(lambda new: (new.normal(4, 5), new.normal(4, 5), new.integers(4, 4, 5)))
def gather_and_scatter(x, y, index):
    return x.gather(0, index), x.scatter_add(0, index, y.sin()), x.index_put((index[0],), y[0], accumulate=True)


@case(lambda new: (new.normal(10, 6), new.integers(10, 2, 3), new.normal(6)))
def embedding_and_norm(table, tokens, w):
    return F.layer_norm(F.embedding(tokens, table), (6,), w)


@case(lambda new: (new.normal(5, 8), new.normal(8, 7), new.integers(7, 5)))
def cross_entropy(x, w, target):
    return F.cross_entropy(x @ w, target, label_smoothing=0.1)


@case(lambda new: (new.integers(9, 4), new.integers(9, 4)))
def integers_only(a, b):
    return a * 2 + b, (a > b).any(), a // 2


@case(lambda new: (new.normal(3, 4).t(), new.values(4, 1).expand(4, 3)))
def strided_inputs(x, y):
    return (x * y).sin(), x.contiguous()


# Python around the operators.


@case(lambda new: (new.normal(4, 3), new.normal(3, 3)))
def loop(xs, w):
    h, hs = torch.zeros_like(xs[0]), []
    for x in xs:
        h = (h @ w + x).tanh()
        hs.append(h)
    return torch.stack(hs)


@case(lambda new: (new.normal(2, 3), (new.normal(2, 4), new.normal(2, 4)), new.normal(3, 16), new.normal(4, 16)))
def lstm_cell(x, state, w, u):
    h, c = state
    i, f, g, o = (x @ w + h @ u).chunk(4, dim=1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


@case(lambda new: ({"x": new.normal(3), "more": [new.normal(3), Pair(new.normal(3), 2.0)]},))
def pytrees(batch):
    a, (b, scale) = batch["more"]
    return {"sum": batch["x"] + a, "rest": Pair([b * scale, None], ("text", 3))}


@case(lambda new: (new.normal(4, 6), 0.5, "relu", True, 2, None, torch.float64, slice(1, 5)))
def constants(x, scale, name, double, repeat, nothing, dtype, part):
    y = getattr(F, name)(x[:, part]) * scale
    for _ in range(repeat):
        y = y + y.sin()
    return (y * 2 if double and nothing is None else y).to(dtype)


@case(lambda new: (new.normal(3, 4),))
def factories(x):
    n, kind = x.shape[1], {"device": x.device}
    return x * torch.arange(n, **kind) + torch.eye(3, n, **kind) - torch.full((n,), 0.5, **kind), torch.zeros(2, **kind)


simple("unused_and_detached", lambda x, y, unused: x.sin() * y.detach().exp() + y, (4,), (4,), (4,))


@case(lambda new: (new.normal(4), new.normal(4)))
def no_grad_inside(x, y):
    with torch.no_grad():
        scale = (x * y).norm()
    return x / scale, scale


@case(lambda new: (new.values(4, 3), new.values(3, 2)))
def nothing_requires_grad(x, w):
    return (x @ w).relu()


@case(lambda new: (new.normal(5, 4), new.normal(4, 3), new.normal(4)))
def several_losses(x, w, b):
    h = x.tanh()
    return {"fit": (h @ w).square().mean(), "bias": (h * b).sum(), "decay": w.square().sum() + b.square().sum()}


@case(lambda new: (new.normal(4, 8), new.normal(8, 8)))
def checkpointed(x, w):
    return checkpoint(lambda y: F.gelu(y @ w).sin() @ w, x.cos(), use_reentrant=False).tanh()


class _Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3 * ctx.saved_tensors[0]  # not the derivative, so that it tells who computed it


simple("custom_backward", lambda x: _Double.apply(x.sin()), (4,))


# Mutation and aliasing.


@case(lambda new: (new.computed(4, 3), new.normal(4, 3)))
def mutates_an_input(x, y):
    x.mul_(y.sin())
    return (x * 2).exp()


@case(lambda new: (new.values(4), new.normal(4)))
def updates_a_running_mean(mean, x):
    with torch.no_grad():
        mean.lerp_(x, 0.1)
    return x - mean


@case(lambda new: (new.normal(4, 3), new.normal(3)))
def mutates_an_intermediate(x, y):
    z = x.sin()
    z[1] = y
    z[:, 0].add_(1)
    return z.mul_(z.cos().detach())


@case(lambda new: (new.computed(4, 3), new.values(2, 2)))
def returns_its_inputs(x, y):
    return x, x.t(), y[0], y, (x * 2).view(12)


@case(lambda new: (x := new.normal(3, 3), x))
def one_tensor_twice(x, y):
    return x.sin() * y


@case(lambda new: ((x := new.computed(6))[:4], x[2:]))
def overlapping_views(x, y):
    return x.sin() * y.cos()


# Numbers other than float32.


@case(lambda new: (new.normal(4, 8, dtype=torch.bfloat16), new.normal(8, 8, dtype=torch.bfloat16)))
def bfloat16(x, w):
    return F.layer_norm(F.gelu(x @ w), (8,))


@case(lambda new: (new.normal(4, 8), new.normal(8, 8)))
def autocast_inside(x, w):
    with torch.autocast(x.device.type, torch.bfloat16):
        return (x @ w).relu().float().sum(1)


@case(lambda new: (new.normal(4, 3, dtype=torch.complex64), new.normal(4, 3)))
def complex_numbers(z, x):
    return (z * torch.complex(x, x.sin())).abs(), z.conj() * z.exp()


@case(lambda new: (new.normal(4, 4, dtype=torch.float64), new.normal(4, dtype=torch.float64)))
def linear_solve(a, b):
    return torch.linalg.solve(a @ a.t() + torch.eye(4, dtype=a.dtype, device=a.device), b)


# Random numbers.

simple("dropout", lambda x, w: F.dropout(x @ w, 0.4).relu(), (4, 8), (8, 8))
simple("noise", lambda x: x * torch.randn_like(x) + torch.rand(8, device=x.device), (4, 8))
simple("bernoulli", lambda x: (torch.bernoulli(x.sigmoid()), x * torch.bernoulli(x.sigmoid())), (4, 8))
simple("dropout_twice", lambda x: F.dropout(F.dropout(x.sin(), 0.3).cos(), 0.3), (4, 8))


# Modules.


@case(lambda new: (new.normal(2, 3, 6, 6),))
class ConvBatchNorm(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())


@case(lambda new: (new.normal(2, 4, 5, 5),))
class ResNetBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(y)))


@case(lambda new: (new.normal(2, 5, 8),))
class TransformerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.Dropout(0.1))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(y)
        return x + self.mlp(self.norm2(x))


@case(lambda new: (new.integers(9, 2, 4),))
class TiedWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 6)
        self.head = nn.Linear(6, 9, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.embedding(tokens).tanh())


@case(lambda new: (new.normal(3),))
class CountingModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.gain = nn.Parameter(torch.ones(3))

    def forward(self, x):
        self.steps += 1
        return x * self.gain / self.steps


@case(lambda new: (new.normal(4, 3),), factory=True)
def closure_over_a_module(device):
    layer = nn.Linear(3, 2).to(device)
    scale = torch.full((2,), 1.5, device=device)

    def closure(x):
        return layer(x).relu() * scale

    return closure
