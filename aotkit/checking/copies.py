"""Copies of a function's inputs that it cannot tell from the originals."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from aotkit.checking.in_pieces import span
from aotkit.torch_private.tensors import negated, unwrapped, wrapped_as

# Of a larger storage, such as a data set of which the input is a slice, only the slice is copied.
MOST_SPARE_BYTES = 64 << 20

Copy = tuple[Tensor, Tensor]
# From all values in a storage to new memory with other ones, perhaps of another type.
Change = Callable[[Tensor], Tensor]


def copy_inputs(tensors: Sequence[Tensor], change: Change | None = None) -> tuple[list[Tensor], list[Tensor]]:
    """(tensors to differentiate, copies to pass): equal values, strides, shared memory and gradient requirements.

    What is to be differentiated is a leaf. For views of one tensor, as several inputs may be, it is that tensor.

    Args:
        change: gives the inputs other values.

    Raises:
        NotImplementedError: values are to change over which there are tensors of different types.
    """
    copier = _Copier(tensors, change or torch.clone)
    pairs = [copier.copy(t) for t in tensors]
    return [leaf for leaf, _ in pairs], [x for _, x in pairs]


class _Copier:
    def __init__(self, tensors: Sequence[Tensor], change: Change) -> None:
        self._change = change
        storages = Counter(unwrapped(t).untyped_storage()._cdata for t in {id(t): t for t in tensors}.values())
        self._shared = {storage for storage, count in storages.items() if count > 1}
        self._storages: dict[int, tuple[torch.dtype, Tensor]] = {}
        # With the originals, so that no id is used again.
        self._copies: dict[int, tuple[Tensor, Copy]] = {}

    def copy(self, tensor: Tensor) -> Copy:
        """(leaf, copy)."""
        if id(tensor) not in self._copies:
            self._copies[id(tensor)] = tensor, self._rewrapped(tensor) or self._view(tensor) or self._copy(tensor)
        return self._copies[id(tensor)][1]

    def _rewrapped(self, tensor: Tensor) -> Copy | None:
        """A copy of a tensor that is made of a plain one."""
        if (plain := unwrapped(tensor)) is tensor:
            return None
        _, inner = self.copy(plain.detach())
        return _copy_of(tensor, wrapped_as(tensor, inner))

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
        return _copy_of(tensor, self._leaf(tensor.detach()))

    def _leaf(self, source: Tensor) -> Tensor:
        if source.is_conj():
            return self._leaf(source.conj()).conj()
        if source.is_neg():
            return negated(self._leaf(negated(source)))
        storage, offset = source.untyped_storage(), int(source.storage_offset())
        if (key := storage._cdata) in self._shared:
            if key not in self._storages:
                self._storages[key] = source.dtype, self._values(source)
            dtype, values = self._storages[key]
            if dtype == source.dtype:
                return _over(source, values, offset)
            if self._change is not torch.clone:
                raise NotImplementedError
            return _over(source, values, offset, source.dtype)
        if storage.nbytes() - source.nbytes <= MOST_SPARE_BYTES:
            # A function may look beyond its view, and where in the storage that begins.
            return _over(source, self._values(source), offset)
        used = span(source.shape, source.stride())
        return _over(source, self._change(source.as_strided((used,), (1,))), 0)

    def _values(self, source: Tensor) -> Tensor:
        """All values in the storage of a tensor."""
        size = source.untyped_storage().nbytes() // source.itemsize
        return self._change(source.as_strided((size,), (1,), 0))


def _copy_of(tensor: Tensor, values: Tensor) -> Copy:
    """(leaf, copy) over new values, to autograd what `tensor` is."""
    leaf = values.requires_grad_(tensor.requires_grad)
    # Eager refuses to mutate a leaf that requires gradients; an input that is no leaf must not become one.
    if not tensor.requires_grad or tensor.is_leaf:
        return leaf, leaf
    with torch.inference_mode(False), torch.enable_grad():
        return leaf, _SameMemory.apply(leaf)  # type: ignore[no-untyped-call]


class _SameMemory(torch.autograd.Function):
    """A tensor over the same memory that is neither a leaf nor, to autograd, a view of one."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor) -> Tensor:
        if (plain := unwrapped(leaf)) is not leaf:
            return wrapped_as(leaf, _SameMemory.forward(ctx, plain))
        if leaf.is_conj():
            return _SameMemory.forward(ctx, leaf.conj()).conj()
        if leaf.is_neg():
            return negated(_SameMemory.forward(ctx, negated(leaf)))
        return _over(leaf, leaf, int(leaf.storage_offset()))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def _over(like: Tensor, values: Tensor, offset: int, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor with the sizes and strides of `like` over the storage of `values`, of their type or another."""
    with torch.inference_mode(like.is_inference()), torch.no_grad():
        empty = torch.empty(0, dtype=dtype or values.dtype, device=like.device)
        return empty.set_(values.untyped_storage(), offset, like.shape, like.stride())
