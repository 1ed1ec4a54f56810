"""What a compiled graph assumes of its inputs, and whether other tensors are the same to it."""

import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._dynamo.guards import TensorGuards
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from aotkit.aot import native


def tensor_guard(tensors: Sequence[Tensor], is_open: Sequence[bool] = ()) -> Callable[..., bool]:
    """A function that tells whether its arguments are to a graph what `tensors` are.

    It compares type, dtype, device, gradient, conjugation, sizes and strides, and which of them are the same tensor;
    under the switches and modes that are in force now.

    Args:
        is_open: for each tensor whether its sizes and strides may be others; all are fixed by default.
    """
    if not tensors:
        return lambda: True
    is_open = is_open or [False] * len(tensors)
    pattern = identity_pattern(tensors)
    if not pattern:
        return _distinct_guard(tensors, is_open)
    first = [i for i, j in enumerate(pattern) if i == j]
    check = _distinct_guard([tensors[i] for i in first], [is_open[i] for i in first])
    return lambda *others: identity_pattern(others) == pattern and check(*[others[i] for i in first])


def _distinct_guard(tensors: Sequence[Tensor], is_open: Sequence[bool]) -> Callable[..., bool]:
    if (library := native.library()) is not None:
        return library.TensorGuard(tuple(tensors), tuple(is_open))  # type: ignore[no-any-return]
    sizes = [[None] * t.dim() if is_open[i] else list(t.shape) for i, t in enumerate(tensors)]
    strides = [[None] * t.dim() if is_open[i] else list(t.stride()) for i, t in enumerate(tensors)]
    make: Any = TensorGuards  # its stub describes one tensor
    return make(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check  # type: ignore[no-any-return]


def tensor_kind(tensor: Tensor) -> Hashable:
    """Roughly what a tensor is, for bookkeeping: its sizes and strides do not count."""
    keys = torch._C._dispatch_keys(tensor).raw_repr()
    return type(tensor), tensor.dtype, tensor.device, tensor.requires_grad, keys, tensor.dim()


def why_eager_tensor(tensor: Tensor) -> str | None:
    """Why this input cannot enter a compiled graph."""
    if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer):
        return f"an input is a {type(tensor).__name__}, a tensor subclass"
    # TorchDynamo's own tell which sizes it leaves open, and stay behind where AOTAutograd has seen open sizes.
    attributes = [name for name in vars(tensor) if not name.startswith("_dynamo_")]
    if attributes and not isinstance(tensor, nn.Parameter | nn.Buffer) and not hasattr(tensor, "_is_param"):
        return f"an input has the Python attributes {', '.join(attributes)}"
    if not has_plain_memory(tensor):
        return f"an input is quantized, without data or of layout {tensor.layout}: not a plain strided tensor"
    return None


def has_plain_memory(tensor: Tensor) -> bool:
    """Whether a tensor is dense and has data."""
    return tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_meta


def is_for_dynamo(tensor: Tensor) -> bool:
    """Whether TorchDynamo may have an input that direct tracing cannot have."""
    return has_plain_memory(tensor) and not overrides_operators(tensor)


def overrides_operators(tensor: Tensor) -> bool:
    """Whether operators do something else to a subclass that does not tell how it is made of plain tensors."""
    kind = type(tensor)
    if kind in (Tensor, nn.Buffer) or is_traceable_wrapper_subclass(tensor):
        return False
    function, dispatch = nn.Parameter.__torch_function__, Tensor.__torch_dispatch__
    return kind.__torch_function__ is not function or kind.__torch_dispatch__ is not dispatch


def identity_pattern(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """For each tensor the first that is the same; () if all are different."""
    ids = [id(t) for t in tensors]
    return () if len(set(ids)) == len(ids) else tuple(map(ids.index, ids))


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


def has_storage(value: Any) -> bool:
    """Whether this is a tensor with memory of its own: neither sparse nor a subclass that wraps others."""
    return isinstance(value, Tensor) and value.layout is torch.strided and not is_traceable_wrapper_subclass(value)


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


def negated(tensor: Tensor) -> Tensor:
    """A view of the negative of a tensor, by its negative bit."""
    return torch._neg_view(tensor)


def storage_users(storages: Sequence[torch.UntypedStorage]) -> list[int]:
    """How many tensors and storages refer to the memory of each."""
    count = torch._C._storage_Use_Count
    return [count(storage._cdata) for storage in storages]
