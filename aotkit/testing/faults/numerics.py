"""Wrong types and roundings, and special values treated wrongly."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule

from aotkit.testing.case import Inputs
from aotkit.testing.faults.planting import Subject, own
from aotkit.testing.faults.rewriting import alter, calls, compute_by, set_argument

aten = torch.ops.aten
faults = Subject("numerics")
NAN, INF = float("nan"), float("inf")


def special(new: Inputs) -> tuple[Tensor]:
    return (new.given(1.0, NAN, -2.0, INF, 0.0, -INF, 90.0, 3.0),)


def _maximum(x: Tensor) -> Tensor:
    return x.amax()


@faults.graph(own(_maximum, special))
def maximum_swallows_nan(gm: GraphModule) -> None:
    """The maximum of numbers and a NaN is a number."""
    compute_by(calls(gm, aten.amax)[0], _maximum_without_nan)


def _maximum_without_nan(x: Tensor, *options: Any) -> Tensor:
    return torch.where(x.isnan(), -INF, x).max()


def _relu(x: Tensor) -> Tensor:
    return F.relu(x) * 2


@faults.graph(own(_relu, special))
def relu_swallows_nan(gm: GraphModule) -> None:
    """relu turns a NaN into zero."""
    alter(calls(gm, aten.relu)[0], torch.nan_to_num, 0.0, INF)


def _exp(x: Tensor) -> Tensor:
    return x.exp()


@faults.graph(own(_exp, special))
def infinity_clipped(gm: GraphModule) -> None:
    """What overflows becomes the largest finite number instead of infinity."""
    alter(calls(gm, aten.exp)[0], torch.clamp_max, torch.finfo(torch.float32).max)


def _reciprocal(x: Tensor) -> Tensor:
    return 1 / -x


@faults.graph(own(_reciprocal, special))
def negative_zero_lost(gm: GraphModule) -> None:
    """-x is computed as 0 - x, which has another sign at zero."""
    compute_by(calls(gm, aten.neg)[0], _zero_minus)


def _zero_minus(x: Tensor) -> Tensor:
    return 0 - x


def _constant_row(x: Tensor) -> Tensor:
    return F.layer_norm(x * torch.tensor([[1.0], [1e-3], [1.0]], dtype=x.dtype), (8,))


@faults.graph(own(_constant_row, lambda new: (new.normal(3, 8),)))
def epsilon_dropped(gm: GraphModule) -> None:
    """A layer norm divides by the standard deviation without epsilon."""
    set_argument(calls(gm, aten.native_layer_norm)[0], "eps", 0.0)


@faults.graph("ConvBatchNorm")
def epsilon_of_another_norm(gm: GraphModule) -> None:
    """A batch norm uses epsilon 1e-3 instead of 1e-5."""
    (node,) = [n for n in gm.graph.nodes if "batch_norm" in str(n.target)]
    set_argument(node, "eps", 1e-3)


def _integer_sum(x: Tensor) -> Tensor:
    return x.int().sum()


@faults.graph(own(_integer_sum, lambda new: (1_500_000_000 + new.integers(10, 3),)))
def integer_overflow(gm: GraphModule) -> None:
    """The sum of 32-bit integers wraps around; it should have 64 bits."""
    compute_by(calls(gm, aten.sum)[0], _sum_in_32_bits)


def _sum_in_32_bits(x: Tensor) -> Tensor:
    return x.sum(dtype=torch.int32).long()


def _long_sum(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).square().sum()


@faults.graph(own(_long_sum, lambda new: (new.normal(2000),)))
def accumulated_in_bfloat16(gm: GraphModule) -> None:
    """A long sum of bfloat16 values is rounded after each addition."""
    compute_by(calls(gm, aten.sum)[0], _running_sum_in_bfloat16)


def _running_sum_in_bfloat16(x: Tensor) -> Tensor:
    total = x.new_zeros(())
    for value in x:
        total = total + value
    return total


@faults.graph("gelu_mlp")
def product_in_half(gm: GraphModule) -> None:
    """A matrix product of float32 values is computed in float16."""
    compute_by(calls(gm, aten.mm)[0], _product_in_half)


def _product_in_half(a: Tensor, b: Tensor) -> Tensor:
    return (a.half() @ b.half()).float()


@faults.results("linear_solve")
def double_through_single(results: list[Any], arguments: Sequence[Any]) -> list[Any]:
    """A float64 result is computed in float32."""
    return [results[0].float().double(), *results[1:]]


@faults.results("layer_norm")
def wrong_dtype(results: list[Any], arguments: Sequence[Any]) -> list[Any]:
    """The output is float64 instead of float32."""
    return [results[0].double(), *results[1:]]


def _large_logits(x: Tensor) -> Tensor:
    return (x * 100).softmax(-1)


@faults.graph(own(_large_logits, lambda new: (new.normal(4, 9),)))
def softmax_without_maximum(gm: GraphModule) -> None:
    """A softmax does not subtract the maximum first, and overflows."""
    compute_by(calls(gm, aten._softmax)[0], _naive_softmax)


def _naive_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return x.exp() / x.exp().sum(dim, keepdim=True)


def _small(x: Tensor) -> tuple[Tensor, Tensor]:
    return (x * 1e-6).expm1(), x * 1e-7


small = own(_small, lambda new: (new.normal(6, 7),))


@faults.graph(small)
def cancellation_in_expm1(gm: GraphModule) -> None:
    """expm1(x) is computed as exp(x) - 1, which loses small values."""
    compute_by(calls(gm, aten.expm1)[0], _exp_minus_one)


def _exp_minus_one(x: Tensor) -> Tensor:
    return x.exp() - 1


@faults.results(small)
def small_values_flushed(results: list[Any], arguments: Sequence[Any]) -> list[Any]:
    """Values below 1e-6 become zero."""
    return [results[0], torch.where(results[1].abs() < 1e-6, 0.0, results[1]), *results[2:]]


def _large_mean(x: Tensor) -> Tensor:
    return (x + 3000).var(1)


@faults.graph(own(_large_mean, lambda new: (new.normal(6, 33),)))
def variance_by_difference(gm: GraphModule) -> None:
    """A variance is the mean of squares less the square of the mean, which cancel."""
    compute_by(calls(gm, aten.var)[0], _variance_by_difference)


def _variance_by_difference(x: Tensor, dim: Any, correction: int = 1) -> Tensor:
    n = x.shape[1]
    return (x.square().mean(1) - x.mean(1).square()) * n / (n - 1)


def _roundings(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.round(), x.to(torch.int64), x.to(torch.int64) // 2


rounded = own(_roundings, lambda new: (new.given(0.5, 1.5, 2.5, -0.5, -1.5, -3.7, 1.0, -1.0),))


@faults.graph(rounded)
def halves_rounded_up(gm: GraphModule) -> None:
    """round takes halves up instead of to the even number."""
    compute_by(calls(gm, aten.round)[0], _round_up)


def _round_up(x: Tensor) -> Tensor:
    return (x + 0.5).floor()


@faults.graph(rounded)
def cast_rounds(gm: GraphModule) -> None:
    """A cast to integers rounds to the nearest instead of towards zero."""
    alter(next(n for n in calls(gm, aten._to_copy)).all_input_nodes[0], torch.round)


@faults.graph(rounded)
def division_truncates(gm: GraphModule) -> None:
    """The division of integers rounds towards zero instead of down."""
    compute_by(calls(gm, aten.floor_divide)[0], _truncating_division)


def _truncating_division(x: Tensor, y: Any) -> Tensor:
    return torch.div(x, y, rounding_mode="trunc")
