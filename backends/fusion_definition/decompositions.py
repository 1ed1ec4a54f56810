"""Operators in terms of those of the table."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from aotkit.interfaces import Decompositions
from aotkit.torch_private.dispatch import core_decompositions

aten = torch.ops.aten
# Composite operators that the core set of ATen keeps.
COMPOSITE = [
    aten._softmax,
    aten._log_softmax,
    aten._native_batch_norm_legit,
    aten._native_batch_norm_legit_functional,
    aten._native_batch_norm_legit.no_stats,
    aten.elu,
    aten.gelu,
    aten.hardtanh,
    aten.leaky_relu,
    aten.linalg_vector_norm,
    aten.logaddexp,
    aten.native_dropout_backward,
    aten.native_group_norm,
    aten.native_layer_norm,
]
# Of which ATen has kernels that are better than those of what they consist of: elements that are read or written by
# index, with what sorts the indices. Gradients of an embedding's rows, of which a few are read by most: on an H200,
# 8192 times the same of two rows takes 0.1 ms, and by `index_put` 3.7.
WHOLE = [
    aten.embedding_dense_backward,
    aten.col2im,
    aten.im2col,
    aten.index_add,
    aten.index_copy,
    aten.linalg_cross,
    aten.max_unpool2d,
    aten.max_unpool3d,
    aten.reflection_pad1d,
    aten.reflection_pad1d_backward,
    aten.reflection_pad2d,
    aten.reflection_pad2d_backward,
    aten.reflection_pad3d,
    aten.reflection_pad3d_backward,
    aten.replication_pad1d,
    aten.replication_pad2d,
    aten.replication_pad3d,
    aten.unfold_backward,
    aten.upsample_linear1d,
    aten.upsample_nearest1d,
    aten.upsample_nearest2d,
    aten.upsample_nearest3d,
]


def lowered_decompositions() -> Decompositions:
    """Into operators of the table."""
    core = {op: rule for op, rule in core_decompositions(COMPOSITE).items() if op.overloadpacket not in WHOLE}
    own: Decompositions = {
        aten.roll.default: _roll,
        aten.repeat.default: _repeat,
        aten.eye.default: _eye,
        aten.eye.m: _eye,
    }
    return {**core, **own}


def _roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    """By slices; torch's own rule reads each element by an index, which is no view of anything."""
    if not _is_known(x):
        return NotImplemented
    if not dims:
        return _roll(x.reshape(-1), shifts, [0]).view(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        if moved := shift % size:
            x = torch.cat((x.narrow(dim, size - moved, moved), x.narrow(dim, 0, size - moved)), dim)
    return x.clone() if all(shift % x.shape[dim] == 0 for shift, dim in zip(shifts, dims, strict=True)) else x


def _repeat(x: Tensor, repeats: Sequence[int]) -> Any:
    """By an axis more for each, along which it is the same."""
    if not _is_known(x):
        return NotImplemented
    shape = [1] * (len(repeats) - x.dim()) + [*x.shape]
    pairs = [*zip(repeats, shape, strict=True)]
    apart = x.reshape([n for size in shape for n in (1, size)]).expand([n for pair in pairs for n in pair])
    return apart.clone(memory_format=torch.contiguous_format).view([times * size for times, size in pairs])


def _is_known(x: Tensor) -> bool:
    return all(isinstance(size, int) for size in x.shape) and x.numel() > 0


def _eye(n: int, m: int | None = None, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    """torch's own rule counts in unsigned numbers, of which ATen has no `arange`."""
    rows = torch.arange(n, device=device).unsqueeze(-1)
    return (rows == torch.arange(n if m is None else m, device=device)).to(dtype or torch.get_default_dtype())
