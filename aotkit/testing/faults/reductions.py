"""Reductions over the wrong dimension, of the wrong scale, and of the wrong elements."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from aotkit.testing.case import Case
from aotkit.testing.faults.planting import Subject
from aotkit.testing.faults.rewriting import batch_norm, set_argument

aten = torch.ops.aten
faults = Subject("reductions")
square = Case.of("sums", lambda x: (x.sum(0), x.mean(1)), lambda new: (new.normal(7, 7),))
negative = Case.of("all_negative", lambda x: (-x.abs()).amax(1) * 2, lambda new: (new.normal(5, 33),))

faults.argument(square, aten.sum, dim=[1]).add("sum_over_rows", "A square matrix is summed over the other dimension.")
faults.operator(square, aten.mean).add("mean_of_one_less", "A mean divides by n - 1.", lambda x, dim: x.sum(dim) / 6)
faults.operator(square, aten.sum).add(
    "last_element_not_summed", "The loop of a sum ends one element early.", lambda x, dim: x[:-1].sum(dim)
)
faults.operator(negative, aten.amax).add(
    "maximum_of_padding",
    "The zeros that pad rows to a multiple of 16 take part in a maximum.",
    lambda x, dim: F.pad(x, (0, -x.shape[-1] % 16)).amax(dim),
)
faults.argument("softmax", aten._softmax, dim=0).add(
    "softmax_over_columns", "The softmax runs over the first dimension instead of the last."
)
faults.argument("statistics", aten.std, correction=1).add(
    "sample_variance", "A standard deviation divides by n - 1, where n was asked for."
)
faults.operator("products", aten.cumsum).add(
    "exclusive_scan", "A cumulative sum leaves out the element itself.", lambda x, dim: x.cumsum(dim) - x
)
faults.argument("sort_and_topk", aten.topk, largest=False).add(
    "smallest_for_largest", "topk returns the smallest values."
)
faults.graph("ConvBatchNorm").add(
    "momentum_the_other_way",
    "Running statistics keep a tenth of the old value instead of nine.",
    lambda gm: set_argument(batch_norm(gm), "momentum", 0.9),
)


@faults.operator("group_norm", aten.native_group_norm)
def more_groups(x: Tensor, w: Tensor, b: Tensor, n: int, c: int, hw: int, groups: int, eps: float) -> Any:
    """Normalisation over four groups of one channel instead of two of two."""
    y, _, _ = torch.native_group_norm(x, w, b, n, c, hw, c, eps)
    return y, *torch.native_group_norm(x, w, b, n, c, hw, groups, eps)[1:]
