"""Operators in terms of those of the table."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from aotkit.backends.fusion_definition.windows import window_decompositions
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
        aten.cat.default: _cat,
        aten.index_put.default: _index_put,
        aten.roll.default: _roll,
        aten.repeat.default: _repeat,
        aten.eye.default: _eye,
        aten.eye.m: _eye,
    }
    return {**core, **window_decompositions(), **own}


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    """Without those that have no elements, as the keys before the first of a cache."""
    kept = [x for x in tensors if not (x.dim() == 1 and x.shape[0] == 0)]
    if len(kept) == len(tensors) or not kept or len({x.dtype for x in tensors}) > 1:
        return NotImplemented
    return kept[0].clone() if len(kept) == 1 else torch.cat(kept, dim)


def _index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Any:
    """On a GPU, what is added up: ATen would sort the indices."""
    given = [(dim, i) for dim, i in enumerate(indices) if i is not None]
    if not accumulate or x.device.type == "cpu" or len(given) != 1 or not x.is_floating_point():
        return NotImplemented
    ((dim, at),) = given
    return added_by_index(x, dim, at, values) if at.dtype in (torch.int64, torch.int32) else NotImplemented


def added_by_index(x: Tensor, dim: int, indices: Tensor, values: Tensor) -> Tensor:
    """`x.index_put((..., indices), values, accumulate=True)`, added up in at least 32 bits."""
    before, after = x.shape[:dim], x.shape[dim + 1 :]
    values = values.expand(*before, *indices.shape, *after).reshape(*before, -1, *after)
    indices = torch.where(indices < 0, indices + x.shape[dim], indices).reshape(-1)
    wide = torch.promote_types(x.dtype, torch.float32)
    return x.to(wide).index_add(dim, indices, values.to(wide)).to(x.dtype)


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
