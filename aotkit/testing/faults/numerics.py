"""Wrong types and roundings, and special values treated wrongly."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from aotkit.testing.case import Case, Inputs
from aotkit.testing.faults.planting import Subject
from aotkit.testing.faults.rewriting import alter, batch_norm, calls, set_argument

aten = torch.ops.aten
faults = Subject("numerics")
NAN, INF = float("nan"), float("inf")


def special(new: Inputs) -> tuple[Tensor]:
    return (new.given(1.0, NAN, -2.0, INF, 0.0, -INF, 90.0, 3.0),)


faults.operator(Case.of("maximum", lambda x: x.amax(), special), aten.amax).add(
    "maximum_swallows_nan",
    "The maximum of numbers and a NaN is a number.",
    lambda x: torch.where(x.isnan(), -INF, x).max(),
)
faults.operator(Case.of("relu", lambda x: F.relu(x) * 2, special), aten.relu).add(
    "relu_swallows_nan", "relu turns a NaN into zero.", lambda x: x.relu().nan_to_num(0.0, INF)
)
faults.operator(Case.of("exp", lambda x: x.exp(), special), aten.exp).add(
    "infinity_clipped",
    "What overflows becomes the largest finite number instead of infinity.",
    lambda x: x.exp().clamp_max(torch.finfo(torch.float32).max),
)
faults.operator(Case.of("reciprocal", lambda x: 1 / -x, special), aten.neg).add(
    "negative_zero_lost", "-x is computed as 0 - x, which has another sign at zero.", lambda x: 0 - x
)


def _constant_row(x: Tensor) -> Tensor:
    return F.layer_norm(x * torch.tensor([[1.0], [1e-3], [1.0]], dtype=x.dtype), (8,))


row = Case.of("constant_row", _constant_row, lambda new: (new.normal(3, 8),))
faults.argument(row, aten.native_layer_norm, eps=0.0).add(
    "epsilon_dropped", "A layer norm divides by the standard deviation without epsilon."
)
faults.graph("ConvBatchNorm").add(
    "epsilon_of_another_norm",
    "A batch norm uses epsilon 1e-3 instead of 1e-5.",
    lambda gm: set_argument(batch_norm(gm), "eps", 1e-3),
)

integers = Case.of("integer_sum", lambda x: x.int().sum(), lambda new: (1_500_000_000 + new.integers(10, 3),))
faults.operator(integers, aten.sum).add(
    "integer_overflow",
    "The sum of 32-bit integers wraps around; it should have 64 bits.",
    lambda x: x.sum(dtype=torch.int32).long(),
)

long = Case.of("long_sum", lambda x: x.to(torch.bfloat16).square().sum(), lambda new: (new.normal(2000),))


@faults.operator(long, aten.sum)
def accumulated_in_bfloat16(x: Tensor) -> Tensor:
    """A long sum of bfloat16 values is rounded after each addition."""
    total = x.new_zeros(())
    for value in x:
        total = total + value
    return total


faults.operator("gelu_mlp", aten.mm).add(
    "product_in_half",
    "A matrix product of float32 values is computed in float16.",
    lambda a, b: (a.half() @ b.half()).float(),
)
faults.results("linear_solve").add(
    "double_through_single", "A float64 result is computed in float32.", lambda r: [r[0].float().double(), *r[1:]]
)
faults.results("layer_norm").add(
    "wrong_dtype", "The output is float64 instead of float32.", lambda r: [r[0].double(), *r[1:]]
)

logits = Case.of("large_logits", lambda x: (x * 100).softmax(-1), lambda new: (new.normal(4, 9),))
faults.operator(logits, aten._softmax).add(
    "softmax_without_maximum",
    "A softmax does not subtract the maximum first, and overflows.",
    lambda x, dim, half_to_float: x.exp() / x.exp().sum(dim, keepdim=True),
)

small = Case.of("small", lambda x: ((x * 1e-6).expm1(), x * 1e-7), lambda new: (new.normal(6, 7),))
faults.operator(small, aten.expm1).add(
    "cancellation_in_expm1", "expm1(x) is computed as exp(x) - 1, which loses small values.", lambda x: x.exp() - 1
)
faults.results(small).add(
    "small_values_flushed",
    "Values below 1e-6 become zero.",
    lambda r: [r[0], torch.where(r[1].abs() < 1e-6, 0.0, r[1]), *r[2:]],
)


@faults.operator(Case.of("large_mean", lambda x: (x + 3000).var(1), lambda new: (new.normal(6, 33),)), aten.var)
def variance_by_difference(x: Tensor, dim: Any, correction: int = 1) -> Tensor:
    """A variance is the mean of squares less the square of the mean, which cancel."""
    n = x.shape[1]
    return (x.square().mean(1) - x.mean(1).square()) * n / (n - 1)


rounded = Case.of(
    "roundings",
    lambda x: (x.round(), x.to(torch.int64), x.to(torch.int64) // 2),
    lambda new: (new.given(0.5, 1.5, 2.5, -0.5, -1.5, -3.7, 1.0, -1.0),),
)
faults.operator(rounded, aten.round).add(
    "halves_rounded_up", "round takes halves up instead of to the even number.", lambda x: (x + 0.5).floor()
)
faults.graph(rounded).add(
    "cast_rounds",
    "A cast to integers rounds to the nearest instead of towards zero.",
    lambda gm: alter(calls(gm, aten._to_copy)[0].all_input_nodes[0], torch.round),
)
faults.operator(rounded, aten.floor_divide).add(
    "division_truncates",
    "The division of integers rounds towards zero instead of down.",
    lambda x, y: torch.div(x, y, rounding_mode="trunc"),
)
