"""Functions that free, enlarge or replace the memory of their inputs, which graphs cannot repeat."""

from collections.abc import Collection, Sequence
from typing import Any

from torch import Tensor

from aotkit.capture.refusals import EagerOnly
from aotkit.errors import TraceError
from aotkit.torch_private.fake_tensors import is_traced
from aotkit.torch_private.tensors import has_storage


class Storages:
    """The storages of tensors as they are now.

    Args:
        names: one for each tensor, for messages.
        replaced: the names of those that may get another storage.
    """

    def __init__(self, tensors: Sequence[Tensor], names: Sequence[str], replaced: Collection[str] = ()) -> None:
        pairs = [(t, name) for t, name in zip(tensors, names, strict=True) if name not in replaced]
        self._before = [(t, name, _storage(t), t.shape) for t, name in pairs if has_storage(t)]

    def verify(self) -> None:
        """See whether each tensor still has its storage, and that its size.

        Raises:
            EagerOnly: one was resized. What comes next, such as a backward pass, might read memory that is freed.
            TraceError: a tensor has another storage, or reaches beyond its own.
        """
        for tensor, name, (storage, size), shape in self._before:
            now, size_now = _storage(tensor)
            # What stands for a tensor while it is traced has no storage of its own.
            if not is_traced(tensor):
                if now == storage and size_now != size and tensor.shape == shape:
                    raise EagerOnly(f"it resizes the storage of {name!r}", final=True)
                if now != storage:
                    raise TraceError(f"the function gives {name!r} another storage, {ADVICE}")
            if tensor.shape != shape and _bytes_needed(tensor) > size:
                raise TraceError(f"the function makes {name!r} larger than its storage, {ADVICE}")


ADVICE = "which a compiled graph would not repeat. Do that outside, or in a function under torch.compiler.disable."


def _storage(tensor: Tensor) -> tuple[int, Any]:
    storage = tensor.untyped_storage()
    return storage._cdata, storage.nbytes()


def _bytes_needed(tensor: Tensor) -> Any:
    steps = [(size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return (tensor.storage_offset() + 1 + sum(steps)) * tensor.itemsize if tensor.numel() else 0
