"""Saved values that a backward graph may write its own results into, so that both are never alive at a time.

AOTAutograd finds those that are no input and no output of the function nor views of one; Inductor takes them for
scratch memory. In torch.compile a graph that is retained is then an error. Here it gets copies.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from aotkit.interfaces import Boxed
from aotkit.runtime.trampolines import unless_retained
from aotkit.torch_private.aotautograd_metadata import forget_donated, function_metadata


def donated_inputs(allowed: bool) -> Sequence[int]:
    """The inputs that the compiler of the backward graph may overwrite; called right before it runs.

    Args:
        allowed: whether it may at all; if not, it is told that there are none.
    """
    metadata = function_metadata()
    if metadata is None:
        return ()
    if not allowed:
        forget_donated(metadata)
    return tuple(metadata.bw_donated_idxs or ())


def sparing_retained(run: Boxed, donated: Sequence[int]) -> Boxed:
    """Give a backward graph copies of what it overwrites where autograd needs that once more."""
    if not donated:
        return run

    def spared(inputs: list[Any]) -> Sequence[Any]:
        for i in donated:
            inputs[i] = _copied(inputs[i])
        return run(inputs)

    return unless_retained(run, spared)


def _copied(tensor: Tensor) -> Tensor:
    """With the same strides, gaps and overlaps included."""
    memory = tensor.untyped_storage().clone()  # type: ignore[no-untyped-call]
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())
