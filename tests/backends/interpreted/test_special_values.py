"""NaN, infinities and the smallest numbers, next to ATen."""

import math

import pytest
import torch
from torch.nn import functional as F

from tests.backends.interpreted.comparing import agree, train

TINY = torch.finfo(torch.float32).tiny
ROWS = {
    "NaN": [0.5, math.nan, -1.0, 2.0, 0.25],
    "NaN and infinities": [math.nan, math.inf, -math.inf, 0.0, 1.0],
    "infinity": [0.5, math.inf, -1.0, 2.0, 0.25],
    "minus infinity": [0.5, -math.inf, -1.0, 2.0, 0.25],
    "infinities": [math.inf, math.inf, -math.inf, 1.0, -1.0],
    "minus infinities": [-math.inf] * 5,
    "denormals": [TINY / 2, -TINY / 4, TINY / 8, 0.0, -0.0],
    "large": [3e38, -3e38, 1e38, 0.0, 1.0],
}
VALUES = torch.tensor(list(ROWS.values()))
LONG = {"LONGEST_WHOLE_ROW": 2, "CHUNK": 2}


def extremes(x):
    return x.amax(1), x.amin(1), x.amax(0), x.amin(0), x.amax(), x.t().amin(1, keepdim=True) * 1


def softmaxes(x):
    return x.softmax(1), F.log_softmax(x, 1), x.logsumexp(1), x.softmax(0), (x * 2).softmax(1).sum(0)


def choices(x):
    y = torch.cat([x[:, 2:], x[:, :2]], 1)
    return torch.maximum(x, y), torch.minimum(x, y), x.clamp(-1, 1), F.relu(x), x.sign(), x.abs()


def conditions(x):
    zero = torch.zeros((), dtype=x.dtype)
    return (
        torch.where(x.isnan(), zero, x), torch.where(x > 0, x, zero), torch.where(x == x, 1.0, x), x.isinf(), x != x,
        x <= 0, torch.where(x < 0, x, x / 0), x.nan_to_num(0.0, 1.0, -1.0), (x > 0).any(1), x.bool(),
    )  # fmt: skip


def arithmetic(x):
    return x + x, x - x, x * 0, x / x, 1 / x, x * 0.5, x.sqrt(), x.exp(), x.sigmoid(), x.tanh(), x.erf()


def sums(x):
    return x.sum(1), x.mean(0), x.prod(1), x.norm(dim=1)


def norms(x):
    return F.layer_norm(x, (5,)), x.var(1)


@pytest.mark.parametrize("long", [False, True], ids=["whole", "chunks"])
@pytest.mark.parametrize("fn", [extremes, softmaxes, choices, conditions, arithmetic, sums, norms])
def test_special_values(fn, long, limit):
    if long:
        limit(**LONG)
    # Welford's algorithm has no mean of numbers whose difference is infinite.
    values = VALUES[:-1] if fn is norms else VALUES
    args = values[:, [1, 0, 2, 4, 3]], values.half()
    for x in args if long else args[:1]:
        agree(fn, x)


def test_a_sum_next_to_a_variance(limit):
    limit(**LONG)
    agree(lambda x: (x.sum(1), x.var(1)), VALUES[:-1])


def test_gradients_of_special_values():
    train(lambda x: (x.softmax(1), x.amax(1), F.relu(x).sum(0)), VALUES.clone().requires_grad_())
