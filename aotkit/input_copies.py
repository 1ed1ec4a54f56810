"""Copies of a function's inputs that it cannot tell from the originals."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from aotkit.aot import negated

# Of a larger storage, such as a data set of which the input is a slice, only the slice is copied.
MOST_SPARE_BYTES = 64 << 20

Copy = tuple[Tensor, Tensor]


def copy_inputs(tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """(tensors to differentiate, copies to pass): equal values, strides, shared memory and gradient requirements.

    What is to be differentiated is a leaf. For views of one tensor, as several inputs may be, it is that tensor.
    """
    copier = _Copier(tensors)
    pairs = [copier.copy(t) for t in tensors]
    return [leaf for leaf, _ in pairs], [x for _, x in pairs]


class _Copier:
    def __init__(self, tensors: Sequence[Tensor]) -> None:
        storages = [t.untyped_storage()._cdata for t in {id(t): t for t in tensors}.values()]
        self._shared = {s for s in storages if storages.count(s) > 1} if len(set(storages)) < len(storages) else set()
        self._storages: dict[int, Any] = {}
        # With the originals, so that no id is used again.
        self._copies: dict[int, tuple[Tensor, Copy]] = {}

    def copy(self, tensor: Tensor) -> Copy:
        """(leaf, copy)."""
        if id(tensor) not in self._copies:
            self._copies[id(tensor)] = tensor, self._view(tensor) or self._copy(tensor)
        return self._copies[id(tensor)][1]

    def _view(self, tensor: Tensor) -> Copy | None:
        """A copy that is a view, where the original and other inputs are: mutating one changes what autograd knows."""
        base = tensor._base
        if base is None or tensor.untyped_storage()._cdata not in self._shared:
            return None
        if base.dtype != tensor.dtype or any(t.is_conj() or t.is_neg() for t in (tensor, base)):
            return None
        leaf, mutable = self.copy(base)
        with torch.inference_mode(tensor.is_inference()), torch.set_grad_enabled(tensor.requires_grad):
            view = mutable.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        if tensor.requires_grad and tensor.is_leaf:
            leaf = view.requires_grad_()
        return (leaf if tensor.requires_grad else view), view

    def _copy(self, tensor: Tensor) -> Copy:
        leaf = self._leaf(tensor.detach()).requires_grad_(tensor.requires_grad)
        # Eager refuses to mutate a leaf that requires gradients; an input that is no leaf must not become one.
        if not tensor.requires_grad or tensor.is_leaf:
            return leaf, leaf
        with torch.inference_mode(False), torch.enable_grad():
            return leaf, _SameMemory.apply(leaf)  # type: ignore[no-untyped-call]

    def _leaf(self, source: Tensor) -> Tensor:
        if source.is_conj():
            return self._leaf(source.conj()).conj()
        if source.is_neg():
            return negated(self._leaf(negated(source)))
        storage = source.untyped_storage()
        if (key := storage._cdata) in self._shared:
            if key not in self._storages:
                self._storages[key] = storage.clone()  # type: ignore[no-untyped-call]
            return _over(source, self._storages[key], int(source.storage_offset()))
        if storage.nbytes() - source.nbytes <= MOST_SPARE_BYTES:
            # A function may look beyond its view, and where in the storage that begins.
            return _over(source, storage.clone(), int(source.storage_offset()))  # type: ignore[no-untyped-call]
        used = 1 + sum((n - 1) * s for n, s in zip(source.shape, source.stride(), strict=True)) if source.numel() else 0
        return _over(source, source.as_strided((used,), (1,)).clone().untyped_storage(), 0)


class _SameMemory(torch.autograd.Function):
    """A tensor over the same memory that is neither a leaf nor, to autograd, a view of one."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor) -> Tensor:
        if leaf.is_conj():
            return _SameMemory.forward(ctx, leaf.conj()).conj()
        if leaf.is_neg():
            return negated(_SameMemory.forward(ctx, negated(leaf)))
        return _over(leaf, leaf.untyped_storage(), int(leaf.storage_offset()))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def _over(like: Tensor, storage: Any, offset: int) -> Tensor:
    with torch.inference_mode(like.is_inference()), torch.no_grad():
        empty = torch.empty(0, dtype=like.dtype, device=like.device)
        return empty.set_(storage, offset, like.shape, like.stride())
