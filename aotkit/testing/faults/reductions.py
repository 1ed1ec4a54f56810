"""Reductions over the wrong dimension, of the wrong scale, and of the wrong elements."""

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from aotkit.testing.faults.planting import Subject, own
from aotkit.testing.faults.rewriting import alter, calls, compute_by, set_argument

aten = torch.ops.aten
faults = Subject("reductions")


def _sums(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sum(0), x.mean(1)


square = own(_sums, lambda new: (new.normal(7, 7),))


@faults.graph(square)
def sum_over_rows(gm: GraphModule) -> None:
    """A square matrix is summed over the other dimension."""
    set_argument(calls(gm, aten.sum)[0], "dim", [1])


@faults.graph(square)
def mean_of_one_less(gm: GraphModule) -> None:
    """A mean divides by n - 1."""
    alter(calls(gm, aten.mean)[0], torch.mul, 7 / 6)


@faults.graph(square)
def last_element_not_summed(gm: GraphModule) -> None:
    """The loop of a sum ends one element early."""
    compute_by(calls(gm, aten.sum)[0], _sum_of_all_but_last)


def _sum_of_all_but_last(x: Tensor, dim: list[int]) -> Tensor:
    return x[:-1].sum(dim)


def _all_negative(x: Tensor) -> Tensor:
    return (-x.abs()).amax(1) * 2


@faults.graph(own(_all_negative, lambda new: (new.normal(5, 33),)))
def maximum_of_padding(gm: GraphModule) -> None:
    """The zeros that pad rows to a multiple of 16 take part in a maximum."""
    compute_by(calls(gm, aten.amax)[0], _maximum_with_padding)


def _maximum_with_padding(x: Tensor, dim: list[int], *options: Any) -> Tensor:
    return torch.nn.functional.pad(x, (0, -x.shape[-1] % 16)).amax(dim)


@faults.graph("softmax")
def softmax_over_columns(gm: GraphModule) -> None:
    """The softmax runs over the first dimension instead of the last."""
    set_argument(calls(gm, aten._softmax)[0], "dim", 0)


@faults.graph("statistics")
def sample_variance(gm: GraphModule) -> None:
    """A standard deviation divides by n - 1, where n was asked for."""
    set_argument(calls(gm, aten.std)[0], "correction", 1)


@faults.graph("products")
def exclusive_scan(gm: GraphModule) -> None:
    """A cumulative sum leaves out the element itself."""
    node = calls(gm, aten.cumsum)[0]
    alter(node, torch.sub, node.args[0])


@faults.graph("sort_and_topk")
def smallest_for_largest(gm: GraphModule) -> None:
    """topk returns the smallest values."""
    set_argument(calls(gm, aten.topk)[0], "largest", False)


@faults.graph("ConvBatchNorm")
def momentum_the_other_way(gm: GraphModule) -> None:
    """Running statistics keep a tenth of the old value instead of nine."""
    (node,) = [n for n in gm.graph.nodes if "batch_norm" in str(n.target)]
    set_argument(node, "momentum", 0.9)


@faults.graph("group_norm")
def more_groups(gm: GraphModule) -> None:
    """Normalisation over four groups of one channel instead of two of two."""
    compute_by(calls(gm, aten.native_group_norm)[0], _single_channels)


def _single_channels(x: Tensor, w: Tensor, b: Tensor, n: int, c: int, hw: int, groups: int, eps: float) -> Any:
    y, _, _ = torch.native_group_norm(x, w, b, n, c, hw, c, eps)
    return y, *torch.native_group_norm(x, w, b, n, c, hw, groups, eps)[1:]
