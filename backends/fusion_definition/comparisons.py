"""Comparisons, logic and choices. What is compared is rounded first."""

from typing import Any

import torch
from torch.fx import Node

from aotkit.backends.fusion_definition.builder import Builder, computed_in, dtype_of
from aotkit.backends.fusion_definition.pointwise import Lowering

aten = torch.ops.aten


def compared(name: str) -> Lowering:
    """Compares in the type that both operands promote to."""

    def lower(b: Builder, node: Node, x: Any, y: Any) -> Any:
        x_value, y_value = (a.meta["val"] if isinstance(a, Node) else a for a in (x, y))
        common = torch.result_type(x_value, y_value)
        if not isinstance(y, Node) and common.is_floating_point:
            y = torch.tensor(y, dtype=common).item()  # ATen rounds the number, too
        return getattr(b.ops, name)(b.rounded(x, computed_in(common)), b.rounded(y, computed_in(common)))

    return lower


def logical(name: str) -> Lowering:
    """Combines what is not zero."""

    def lower(b: Builder, node: Node, *operands: Any) -> Any:
        return getattr(b.ops, name)(*(b.rounded(x, torch.bool) for x in operands))

    return lower


def classified(name: str) -> Lowering:
    """Tells special floating-point numbers."""

    def lower(b: Builder, node: Node, x: Any) -> Any:
        dtype = computed_in(dtype_of(x))
        # No integer is special; in half precision a large number may be infinite.
        return getattr(b.ops, name)(b.rounded(x, dtype if dtype.is_floating_point else torch.float64))

    return lower


def where(b: Builder, node: Node, condition: Any, x: Any, y: Any) -> Any:
    dtype = computed_in(dtype_of(node))
    return b.ops.where(b.rounded(condition, torch.bool), b.operand(x, dtype), b.operand(y, dtype))


COMPARISONS: dict[Any, Lowering] = {
    aten.eq.Tensor: compared("eq"),
    aten.eq.Scalar: compared("eq"),
    aten.ne.Tensor: compared("ne"),
    aten.ne.Scalar: compared("ne"),
    aten.lt.Tensor: compared("lt"),
    aten.lt.Scalar: compared("lt"),
    aten.le.Tensor: compared("le"),
    aten.le.Scalar: compared("le"),
    aten.gt.Tensor: compared("gt"),
    aten.gt.Scalar: compared("gt"),
    aten.ge.Tensor: compared("ge"),
    aten.ge.Scalar: compared("ge"),
    aten.logical_not.default: logical("logical_not"),
    aten.logical_and.default: logical("logical_and"),
    aten.logical_or.default: logical("logical_or"),
    aten.logical_xor.default: logical("bitwise_xor"),
    aten.isnan.default: classified("isnan"),
    aten.isinf.default: classified("isinf"),
    aten.where.self: where,
}
