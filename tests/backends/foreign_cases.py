"""Each operator that compilers from elsewhere get, on values that are hard: infinities, NaN, zeros of both signs."""

import math

import torch

from aotkit.backends.foreign import operators as ops

aten = torch.ops.aten
HARD = [math.inf, -math.inf, math.nan, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.7, 88.0, -88.0, 1e-3, 1e6, -3e9, 100.0]
WHOLE = [0, 1, -1, 2, 3, 7, -8, 100, -128, 127, 5, -3, 64, 31, -31, 12]


def values(dtype):
    """Every pair of hard values, as two matrices."""
    if dtype is torch.bool:
        x = torch.arange(16) % 3 == 0
    elif dtype is torch.uint8:
        x = torch.tensor(WHOLE).abs().to(dtype)
    else:
        x = torch.tensor(HARD if dtype.is_floating_point else WHOLE, dtype=dtype)
        if dtype in (torch.int64, torch.int32):
            # An angle beyond 1e15 is more than IREE's sine can take.
            x = torch.where(x == 12, min(torch.iinfo(dtype).max, 2**40), x)
    return x[:, None].expand(16, 16).contiguous(), x.expand(16, 16).contiguous()


NUMBERS = {
    "add": lambda x, y: (x + y, x + 2, torch.add(x, y, alpha=2), torch.add(x, 3, alpha=2)),
    "sub": lambda x, y: (x - y, 3 - x, torch.sub(x, y, alpha=3)),
    "mul": lambda x, y: (x * y, x * 3),
    "numbers": lambda x, y: (
        aten.add.Scalar(x, 2, 2),
        aten.sub.Scalar(x, 2),
        aten.mul.Scalar(x, 3),
        aten.div.Scalar(x, 2),
    ),
    "maximum": lambda x, y: (torch.maximum(x, y), torch.minimum(x, y)),
    "clamp": lambda x, y: (x.clamp(1), x.clamp(max=2), x.clamp(0, 3)),
    "abs": lambda x, y: (x.abs(), x.relu(), x.sign()),
    "neg": lambda x, y: (-x,),
    "div": lambda x, y: (x / y, x / 3, 2 / x),
    "compare": lambda x, y: (x == y, x != y, x < y, x <= y, x > y, x >= y),
    "compare.number": lambda x, y: (x == 1, x != 1, x < 1.5, x <= 1, x > 1, x >= 2.5),
    "logical": lambda x, y: (x.logical_and(y), x.logical_or(y), x.logical_not()),
    "where": lambda x, y: (torch.where(x > y, x, y), torch.where(x > 1, x, 0), torch.where(x == y, 1.5, y)),
    "any": lambda x, y: (x.any(1), x.any(0, keepdim=True)),
    "amax": lambda x, y: (x.amax(1), y.amax(-1), x.amin(0, keepdim=True), y.amin(), x.amax((0, 1))),
    "sum": lambda x, y: (x.sum(1), y.sum(-1, keepdim=True), x.sum(), x.sum(0, dtype=torch.float32)),
    "mean": lambda x, y: (x.float().mean(1), y.float().mean(), (x.float() * 2).mean((0, 1), keepdim=True)),
    "shapes": lambda x, y: (
        x.t() + y,
        x.reshape(4, 64)[1:3, ::2] + 1,
        x.view(2, 8, 16).permute(2, 0, -2) + 1,
        x.unsqueeze(1).expand(16, 3, 16) + y[:, None],
        x[3] + y[:, -2],
        x.flip(0)[-3:-1] + 1,
        x[:, :1].squeeze() + y,
        (x + 1).reshape(-1).view(16, 4, 4).transpose(0, 1) + 2,
    ),
    "cat": lambda x, y: (torch.cat([x + 1, y, x[:3]], 0), torch.cat([x + 1, y], -1), torch.stack([x + 1, y * 2], 1)),
    "gather": lambda x, y: (
        (x + 1).gather(1, torch.arange(32).view(16, 2) % 16),
        (x + 1).gather(0, torch.arange(16).view(1, 16).flip(1)),
    ),
    "constants": lambda x, y: (
        x + torch.arange(16),
        x + torch.full((16,), 2, dtype=x.dtype),
        x * torch.ones_like(x),
        torch.where(x == 1, torch.scalar_tensor(7, dtype=x.dtype), x),
        x + torch.arange(1, 33, 2),
    ),
    "to": lambda x, y: (
        *((x > y).to(d) for d in ops.DTYPES),
        *(torch.where((x < 50) & (x > -50), x, 3).to(d) for d in ops.DTYPES if d not in (torch.bool, torch.uint8)),
        torch.where((x > 0) & (x < 50), x, 3).to(torch.uint8),
        x.to(torch.bool),
    ),
    "clone": lambda x, y: (x.clone() + 1, (x + 1).clone(), aten.alias(x * 2) * 3),
    "promoted": lambda x, y: (
        x + y.float(),
        x * (y > 0),
        x + torch.tensor(2),
        x * torch.tensor(1.5),
        x > y.double(),
        torch.cat([x, y.float()]),
        x * 2.5,
    ),
}
FLOATS = {
    "pow": lambda x, y: (x**2, x**3, x**-1, x**0.5, x**-2, x**-0.5, x**y, x**2.5),
    **{
        name: lambda x, y, name=name: (getattr(torch, name)(x),)
        for name in (
            *("exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "sigmoid", "erf", "sqrt", "rsqrt", "reciprocal"),
            *("floor", "ceil", "trunc"),
        )
    },
}
WHOLES = {
    "bitwise": lambda x, y: (x & y, x | y, x ^ y, ~x, x & 5, x | 6, x ^ 3),
    "shift": lambda x, y: (x >> 1, x << 2, x >> 3),
    "pow": lambda x, y: (x.clamp(0, 4) ** 2, x.clamp(0, 4) ** 3),
    "functions": lambda x, y: (x.exp(), x.sin(), x.sigmoid(), x.sqrt()),
}
TRUTHS = ("compare", "logical", "where", "any", "sum", "shapes", "cat", "gather", "promoted", "bitwise", "clone")


def cases(dtype):
    """Name -> function of two tensors of this type."""
    if dtype is torch.bool:
        return {name: function for name, function in (NUMBERS | WHOLES).items() if name in TRUTHS}
    return NUMBERS | (FLOATS if dtype.is_floating_point else WHOLES)
