"""Functions that nvFuser takes as a whole, forward and backward; each operator of its table is in one at least."""

import math

import torch
from torch.nn import functional as F

CASES = {}
# Of the table, what Inductor's decompositions leave of these functions, and the fuser's do not: test_fuser_lists.py.
FROM_INDUCTOR = {
    "prims.convert_element_type.default", "prims.iota.default", "aten.sum.default", "aten.squeeze.default",
    "aten.squeeze.dim", "aten.select_scatter.default", "aten.clamp_min.default", "aten.clamp_min.Tensor",
    "aten.clamp_max.default", "aten.clamp_max.Tensor",
}  # fmt: skip


def case(*shapes, **more):
    """Registers a function of tensors of these shapes; more inputs by name: functions of the device."""

    def register(fn):
        CASES[fn.__name__] = fn, shapes, more
        return fn

    return register


def inputs_of(name, dtype, device):
    """The function of a case and its arguments, in [0.1, 0.9)."""
    fn, shapes, more = CASES[name]
    tensors = [(torch.rand(s, device=device) * 0.8 + 0.1).to(dtype).requires_grad_() for s in shapes]
    return fn, (*tensors, *(make(device) for make in more.values()))


@case((4, 8), (4, 8), (8,), (8,))
def dropout_add_layer_norm(x, residual, weight, bias):
    return F.layer_norm(F.dropout(F.gelu(x), 0.1) + residual, (8,), weight, bias)


@case((2, 3, 4, 5))
def dropout_of_attention(x):
    return F.dropout(x.softmax(-1), 0.5) * 2


@case((4, 3, 2, 5), mean=lambda device: torch.zeros(3, device=device), var=lambda device: torch.ones(3, device=device))
def batch_norm(x, mean, var):
    return F.relu(F.batch_norm(x, mean, var, training=True))


@case((6, 8), (8,))
def rms_norm(x, weight):
    return F.rms_norm(x, (8,), weight)


@case((3, 8), (3, 8))
def swiglu(x, gate):
    return F.silu(gate) * x


@case((5, 7), target=lambda device: torch.tensor([0, 6, -100, 3, 3], device=device))
def cross_entropy(x, target):
    return F.cross_entropy(x, target, label_smoothing=0.1)


@case((5, 7), index=lambda device: torch.tensor([[0], [6], [2], [3], [3]], device=device))
def chosen_of_rows(x, index):
    return x.gather(1, index) + x.scatter(1, index, 0.5).sum() + x.scatter(1, index, x[:, :1] * 2)


@case((4, 6))
def activations(x):
    return (
        F.relu(x) + F.leaky_relu(x) + F.relu(x) ** 2 + F.silu(x) + F.elu(x) + F.hardtanh(x, 0.2, 0.6) + F.softplus(x)
        + F.gelu(x, approximate="tanh") + F.hardswish(x) + F.mish(x) + F.logsigmoid(x) + F.threshold(x, 0.3, 2.0)
    )  # fmt: skip


@case((4, 6))
def smelu(x, beta=1.1):
    return torch.where(x >= beta, x, torch.where(x <= -beta, 0.0, (x + beta).square() / (4 * beta)))


@case((4, 6))
def functions(x):
    return (
        x.abs() - x.neg() + x.sign() + x.reciprocal() + x.sqrt() + x.rsqrt() + x.sigmoid() + x.exp() + x.exp2()
        + x.expm1() + x.log() + x.log2() + x.log10() + x.log1p() + x.erf() + x.erfc()
    )  # fmt: skip


@case((4, 6))
def trigonometry(x):
    return (
        x.sin() + x.cos() + x.tan() + x.asin() + x.acos() + x.atan() + x.sinh() + x.cosh() + x.tanh() + x.asinh()
        + (x + 1).acosh() + x.atanh()
    )  # fmt: skip


@case((4, 6))
def special(x):
    return x.detach().erfinv() + x.detach().lgamma()


@case((4, 6), (6,))
def two_operands(x, y):
    return (
        torch.maximum(x, y) + torch.minimum(x, y) + torch.atan2(x, y) + x.sub(y, alpha=3) / y + x / 7 + x**y + 2**x
        + x**3 + x**0.5 + x**-0.5 + x**-1 + x**1 + x**2.5 + x.clamp(0.3, 0.6) + x.clamp(y * 0.5, y) + x.clamp_min(0.4)
        + x.clamp_max(0.5) + torch.lerp(x, y, 0.3)
    )  # fmt: skip


@case((4, 6), (6,))
def steps(x, y):
    z = x.detach() * 5 - 2
    return (
        z.floor() + z.ceil() + z.round() + z.trunc() + z.frac() + torch.div(z, y.detach(), rounding_mode="trunc")
        + z % 0.7 + z.remainder(y.detach()) + z.fmod(y.detach()) + torch.fmod(z, 0.3)
        + torch.div(z, 0.3, rounding_mode="trunc")
    )  # fmt: skip


@case(
    a=lambda device: torch.arange(-6, 6, device=device).view(3, 4),
    b=lambda device: torch.tensor([-3, 2, 5, -1], device=device),
)
def integers(a, b):
    small = a.to(torch.int32)
    return (
        torch.div(a, b, rounding_mode="floor"), torch.div(a, b, rounding_mode="trunc"), a % b, a.fmod(b), a % 4, a // 3,
        a.fmod(3), ~a, a & b, a | b, a ^ b, a & 5, a | 1, a ^ 7, a << 2, a >> 1, small << 30, small * 1103515245,
        torch.bitwise_right_shift(small, 3), torch.bitwise_left_shift(small, 3), a**2, a**3, a.abs() - 4, a.sum(1),
        small.sum(), a.amax(0), a.sign(), a.floor(), a.float() / 3, a / b, small > 2, a.clamp(-2, 3), a.prod(1), -a,
    )  # fmt: skip


@case((4, 6), (6,))
def comparisons(x, y):
    return (
        x == y, x != y, x < y, x <= y, x > y, x >= y, x == 0.5, x != 0.5, x < 0.5, x <= 0.5, x > 0.5, x >= 0.5,
        x.isnan(), (x / 0).isinf(), ~(x < y), (x < y) & (x > 0.3), torch.logical_and(x, y), torch.logical_or(x, x > y),
        torch.logical_xor(x > y, y), torch.logical_not(x), x.bool(), (x > y).to(x.dtype), (x * 9).int(), (x > 0.5) * x,
    )  # fmt: skip


@case((2, 3, 4))
def views(x):
    a, b = (x * 2).split([1, 3], dim=2)
    rows = x.view(6, 4).t().unsqueeze(1).expand(4, 5, 6).permute(2, 0, 1) * 3
    parts = torch.cat([x[:, 1:], a.expand(2, 3, 4)], dim=1)
    padded = F.pad(b.squeeze(), (1, 2), value=0.5)
    return (
        rows.reshape(5, -1),
        parts.flatten(),
        padded,
        x.sum().view(1, 1) * 2,
        x[:, 1] - x.unbind(1)[0],
        x.view(24).cos(),
        (x.detach() * 3).as_strided((6, 4), (4, 1)).sin(),
    )


@case((2, 3), (2,))
def scattered_parts(x, y):
    z = x * 2
    z[:, 1:] = y[:, None]
    w = x.cos()
    w[:, 0] = y
    return z, w.t(), z[:, None].squeeze() * 2


@case((3, 24))
def parts_of_heads(x):
    q, k, v = (x * 2).split([8, 8, 8], dim=1)
    q, k = (h.view(3, 2, 4) / h.view(3, 2, 4).norm(dim=-1, keepdim=True) for h in (q, k))
    heads = torch.cat([q.flatten(1), k.flatten(1), v.cos()], dim=1)
    turned = torch.cat([-heads[:, 12:], heads[:, :12]], dim=1)
    return heads * turned, q.flatten(1)[:, 4:8] + 1, F.pad(k.flatten(1), (4, 8)).exp()


@case((5, 4, 6), (4, 3))
def interleaved(x, y):
    """Pairs that lie next to each other are rotated, and come together again."""
    a, b = (x * 2)[..., ::2], (x * 2)[..., 1::2]
    turned = torch.stack((a * y - b * y.cos(), a * y.cos() + b * y), -1).flatten(-2)
    parted = x.sin()
    parted[:, 1::2] = x[:, ::2]
    return turned, parted, y[:, 2::3].sin()


@case((6, 40), (6, 24), (6, 24))
def put_together(x, y, z):
    """Pieces that have sums, of other rows each, of the same or of columns; pieces in two dimensions; some without."""
    rows = torch.cat([F.normalize(x, dim=-1), F.layer_norm(y, (24,)), F.normalize(y * z, dim=-1), z.exp()], -1)
    columns = torch.cat([x.mean(0), x.std(0), (y * z).sum(0)])
    squares = torch.cat([torch.cat([y - y.amax(1, keepdim=True), z], 1), torch.cat([z.softmax(1), y], 1)])
    return rows, columns, squares, F.pad(x.softmax(-1), (2, 3)), torch.stack([y.sum(1), z.amax(1), x.mean(1)])


@case((3, 100))
def rows_behind(x):
    return F.pad(x * 2, (0, 0, 0, 1)).softmax(-1)


@case((3, 4, 5))
def reductions(x):
    return (
        x.sum(), x.sum(1), x.sum((0, 2), keepdim=True), x.mean(), x.mean((1, 2)), x.amax(2), x.amin((0, 1)), x.var(1),
        x.std(correction=0), *torch.var_mean(x, (0, 2)), x.detach().prod(), x.detach().prod(1), (x > 0.5).any(),
        (x > 0.2).all(), (x > 0.5).any(1), (x > 0.2).all(2), torch.any(x > 0.5, (0, 1)), x.logsumexp(1), x.norm(dim=1),
        x.sum(dtype=torch.float32), (x > 0.5).sum(), F.log_softmax(x, 1),
    )  # fmt: skip


@case((3, 4))
def factories(x):
    n = torch.arange(4, device=x.device)
    wide = torch.full((3, 1), math.inf, device=x.device)
    return (
        x * torch.arange(1, 9, 2, device=x.device) + torch.full_like(x, 2) + torch.zeros_like(x) + torch.ones_like(n),
        (-wide).exp() + n,
        torch.where(x > 0.5, torch.full((), 0.0, dtype=x.dtype, device=x.device), x),
    )


@case((4, 6), (4, 6))
def casts(x, y):
    z = (x * y).to(torch.bfloat16)
    return z.float() * 2, x.double().exp(), (z + 1).half(), torch.where(x > y, x, 0.1), torch.lerp(x, y, 0.5).float()
