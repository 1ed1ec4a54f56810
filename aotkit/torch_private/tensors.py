"""What a compiled graph assumes of its inputs, whether other tensors are the same to it, and how it makes new ones."""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._dynamo.guards import TensorGuards
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from aotkit.torch_private import native

Empty = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], Tensor]
InPlace = Callable[[list[Any], tuple[int, ...], tuple[int, ...], tuple[int, ...]], Tensor | None]
is_view = Tensor._is_view
# Of `torch._dynamo.mark_dynamic` and its like.
_MARKS = {"_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices", "_has_dynamo_dim_marking"}


def data_pointer() -> int:
    """Where the function in C is that finds the memory of a tensor."""
    return int(torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr)  # type: ignore[attr-defined]


def empty_strided_on(device_type: str) -> Empty:
    """`torch.empty_strided(size, stride, dtype)` in half the time, on the current device of a type: `cpu` or `cuda`."""
    if device_type == "cpu":
        return torch._C._dynamo.guards._empty_strided_cpu  # type: ignore[attr-defined, no-any-return]
    return torch._C._dynamo.guards._empty_strided_cuda  # type: ignore[attr-defined, no-any-return]


def in_place() -> InPlace:
    """A function that makes a tensor in the memory of one that nothing else refers to.

    It takes a list of values, the numbers of some, a size and strides, which leave no gaps. The tensor fills the memory
    of the first of these values to which the list alone refers, and no view, no other tensor, no node of autograd, no
    array. None if there is none; so, too, without the library in C++.
    """
    library = native.library()
    return (lambda *_: None) if library is None else library.in_place


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


def is_marked(tensor: Tensor) -> bool:
    """Whether the user has told TorchDynamo which sizes of a tensor to leave open; of no parameter."""
    return not isinstance(tensor, nn.Parameter) and not _MARKS.isdisjoint(vars(tensor))


@contextmanager
def sizes_to_leave_open(dimensions: Iterable[tuple[Tensor, int]]) -> Iterator[None]:
    """Have TorchDynamo leave these sizes open if it captures a call inside; not of tensors that the user marks."""
    from torch._dynamo import maybe_mark_dynamic

    unmarked = [(tensor, dimension) for tensor, dimension in dimensions if not is_marked(tensor)]
    try:
        for tensor, dimension in unmarked:
            maybe_mark_dynamic(tensor, dimension)
        yield
    finally:
        for tensor, _ in unmarked:
            for name in _MARKS & vars(tensor).keys():
                delattr(tensor, name)


def why_eager_tensor(tensor: Tensor) -> str | None:
    """Why this input cannot enter a compiled graph."""
    if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer):
        return f"an input is a {type(tensor).__name__}, a tensor subclass"
    # TorchDynamo's own tell which sizes it leaves open, and stay behind where AOTAutograd has seen open sizes.
    attributes = [name for name in vars(tensor) if not name.startswith("_dynamo_")]
    if attributes and not isinstance(tensor, nn.Parameter | nn.Buffer) and not hasattr(tensor, "_is_param"):
        return f"an input has the Python attributes {', '.join(attributes)}"
    if tensor.is_meta or not _is_plain(tensor):
        return f"an input is quantized, without data or of layout {tensor.layout}: not a plain strided tensor"
    return None


def is_for_dynamo(tensor: Tensor) -> bool:
    """Whether TorchDynamo may have an input that direct tracing cannot have.

    Tensors without data are such: functional calls replace those of a module on device "meta".
    """
    return _is_plain(tensor) and not overrides_operators(tensor)


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized


def is_wrapper(tensor: Tensor) -> bool:
    """Whether this is a subclass around other tensors, as a DTensor is."""
    return is_traceable_wrapper_subclass(tensor)


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


def has_storage(value: Any) -> bool:
    """Whether this is a tensor with memory of its own: neither sparse nor a subclass that wraps others."""
    return isinstance(value, Tensor) and value.layout is torch.strided and not is_traceable_wrapper_subclass(value)


def unwrapped(tensor: Tensor) -> Tensor:
    """The plain tensor that a subclass is made of, if it is one, as a DTensor is of this rank's shard; else itself."""
    name = _only_part(tensor)
    return tensor if name is None else unwrapped(getattr(tensor, name))


def wrapped_as(like: Tensor, plain: Tensor) -> Tensor:
    """A tensor as `like`, made of another plain tensor, without gradients."""
    if (name := _only_part(like)) is None:
        return plain
    names, context = like.__tensor_flatten__()  # type: ignore[attr-defined]
    parts = {n: getattr(like, n) for n in names} | {name: wrapped_as(getattr(like, name), plain)}
    make: Any = type(like).__tensor_unflatten__  # type: ignore[attr-defined]
    return make(parts, context, like.shape, like.stride()).detach()  # type: ignore[no-any-return]


def _only_part(tensor: Tensor) -> str | None:
    """The name of the only tensor that a subclass wraps; None if it wraps none, or several."""
    if not is_traceable_wrapper_subclass(tensor):
        return None
    names = [n for n in tensor.__tensor_flatten__()[0] if isinstance(getattr(tensor, n), Tensor)]
    return names[0] if len(names) == 1 else None


def negated(tensor: Tensor) -> Tensor:
    """A view of the negative of a tensor, by its negative bit."""
    return torch._neg_view(tensor)


def storage_users(storages: Sequence[torch.UntypedStorage]) -> list[int]:
    """How many tensors and storages refer to the memory of each."""
    count = torch._C._storage_Use_Count
    return [count(storage._cdata) for storage in storages]


def dtype_named(name: str) -> torch.dtype:
    """The type of which this is the text: `torch.float32`."""
    return getattr(torch, name.removeprefix("torch."))  # type: ignore[no-any-return]


ALIGNMENT = 16  # in bytes, of what Inductor's kernels for GPUs take to be aligned


def aligning(run: Callable[..., Any], inputs_to_check: Sequence[int], mutated_input_idxs: Collection[int]) -> Any:
    """Copies of these inputs where they are not aligned, as Inductor makes them."""
    from torch._inductor.utils import align_inputs_from_check_idxs
    from torch.utils._ordered_set import OrderedSet

    return align_inputs_from_check_idxs(run, inputs_to_check, OrderedSet(mutated_input_idxs))
