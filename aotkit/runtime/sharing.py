"""Whether inputs share memory, and how."""

import itertools
from collections.abc import Hashable, Sequence
from typing import Any

from torch import Tensor

from aotkit.torch_private.tensors import has_storage

HIDDEN_OVERLAP = "it mutates an input whose memory another has, too, through another storage, as NumPy arrays give it"


def memory_pattern(tensors: Sequence[Tensor], offsets: bool = False) -> Hashable:
    """Which inputs are the same tensor or share storage, where in it, and what they are views of; () if none do.

    Args:
        offsets: tell of all tensors where in their storage they begin.
    """
    begins = tuple(t.storage_offset() for t in tensors) if offsets else ()
    first: dict[int, int] = {}
    storages = [first.setdefault(t.untyped_storage()._cdata, i) for i, t in enumerate(tensors)]
    if len(first) == len(tensors):
        return begins
    same: dict[int, int] = {}
    shared = []
    for i, (tensor, storage) in enumerate(zip(tensors, storages, strict=True)):
        if storages.count(storage) > 1:
            size, base = tensor.untyped_storage().nbytes(), tensor._base
            # Where they are mutated, the graph takes what they are views of in their place.
            view = base if base is None else (same.setdefault(id(base), i), base.dtype, base.shape, base.stride())
            shared.append((i, storage, size, same.setdefault(id(tensor), i), tensor.storage_offset(), view))
    return begins, tuple(shared)


def mutation_pattern(inputs: Sequence[Any], mutated: Sequence[int]) -> Hashable:
    """How these of the inputs share memory with others, as far as it matters to a graph that mutates them; () if not.

    TorchDynamo does not see to it that inputs that were apart stay so.
    """
    where = [i for i, x in enumerate(inputs) if has_storage(x)]
    storages = {i: inputs[i].untyped_storage()._cdata for i in where}
    mutated = [i for i in mutated if i in storages]
    written = {storages[i] for i in mutated}
    close = [i for i in where if storages[i] in written]
    if len(close) == len(written):
        return ()
    found = []
    for i in mutated:
        for j in close:
            if i != j and storages[i] == storages[j] and _ranges_meet(inputs[i], inputs[j]):
                found.append((i, j, *map(_place, (inputs[i], inputs[j]))))
    return tuple(found)


def _ranges_meet(a: Tensor, b: Tensor) -> bool:
    (a_begin, a_end), (b_begin, b_end) = map(_range, (a, b))
    return a_begin < b_end and b_begin < a_end


def _range(tensor: Tensor) -> tuple[int, int]:
    """The bytes of its storage that a tensor lies in."""
    begin = int(tensor.storage_offset()) * tensor.itemsize
    steps = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + ((int(steps) + 1) * tensor.itemsize if tensor.numel() else 0)


def _place(tensor: Tensor) -> Hashable:
    """Where in its storage a tensor is, and what it is a view of: the graph takes that in its place."""
    base = tensor._base
    view = base if base is None else (base.dtype, base.shape, base.stride(), base.storage_offset())
    return tensor.untyped_storage().nbytes(), tensor.storage_offset(), tensor.shape, tensor.stride(), view


def hidden_overlap(tensors: Sequence[Any]) -> bool:
    """Whether two of these share memory that is not of one storage, as a tensor and its NumPy array or DLPack capsule.

    AOTAutograd knows nothing of such sharing: a graph that mutates one of them would not show it in the other.
    """
    storages = {s._cdata: s for s in (t.untyped_storage() for t in tensors if has_storage(t))}
    begins = sorted((s.data_ptr(), s.nbytes()) for s in storages.values() if s.data_ptr())
    return any(a + size > b for (a, size), (b, _) in itertools.pairwise(begins))
