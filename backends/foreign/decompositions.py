"""Operators in terms of those that compilers from elsewhere get."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from aotkit.backends.fusion_definition.decompositions import lowered_decompositions
from aotkit.interfaces import Decompositions

aten = torch.ops.aten


def decompositions() -> Decompositions:
    """Those into the core set of ATen, and of what that keeps."""
    return {**lowered_decompositions(), aten.var_mean.correction: _var_mean, aten.var.correction: _var}


def _var_mean(x: Tensor, dim: Sequence[int] | None = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """In two passes over the values, which is as accurate as ATen. Not of open sizes, nor of complex numbers."""
    if x.is_complex() or not all(isinstance(size, int) for size in x.shape):
        return NotImplemented
    dims = [*dim] if dim else [*range(x.dim())]
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    count = 1
    for d in dims:
        count *= x.shape[d]
    mean = wide.mean(dims, keepdim=True)
    squares = (wide - mean).square().sum(dims, keepdim=keepdim)
    variance = squares / max(count - (1 if correction is None else correction), 0)
    return variance.to(x.dtype), (mean if keepdim else mean.squeeze(dims)).to(x.dtype)


def _var(x: Tensor, dim: Sequence[int] | None = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    found = _var_mean(x, dim, correction=correction, keepdim=keepdim)
    return found if found is NotImplemented else found[0]
