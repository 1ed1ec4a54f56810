"""What a sum gathers from larger tensors is stored before it, as a loss has it that looks up a value of each row.

Inductor has the kernel that sums look them up, which is a single program if it has one result, and waits for them: they
lie far apart. As values of their own they are computed by the kernel that reduces the rows, each right after its row.
On an H200 cross entropy takes 49.0 us instead of 54.8 ([2, 4096, 4096], float32), or 13.2 instead of 17.0 ([4, 1024,
1024], float16).
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import torch._inductor.lowering as lowering
from torch._inductor.choices import InductorChoices
from torch._inductor.ir import ComputedBuffer, Pointwise, Reduction, StorageBox, TensorBox
from torch._inductor.virtualized import V

from aotkit.torch_private.kernel_changes.realizing import is_on_gpu

FEW_PROGRAMS = 16  # results
FEW_VALUES = 64  # times fewer than there are in what they are gathered from, so that it costs nothing to store them
_reduction_of: Any = lowering._make_reduction_inner
_can_fuse = InductorChoices.can_fuse
_stored: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()  # graph -> names of what is stored here


@contextmanager
def stored_gathers() -> Iterator[None]:
    """For the time of compiling a graph. What other threads compile meanwhile gets the same."""
    with (
        patch.object(lowering, "_make_reduction_inner", _reduction_of_stored),
        patch.object(InductorChoices, "can_fuse", staticmethod(_can_fuse_stored)),
    ):
        yield


def _reduction_of_stored(x: Any, **keywords: Any) -> Any:
    reduction = _reduction_of(x, **keywords)
    if _number(reduction["ranges"]) > FEW_PROGRAMS or not _gathers_few(x):
        return reduction
    _stored.setdefault(V.graph, set()).add(x.realize())
    return _reduction_of(x, **keywords)


def _gathers_few(x: Any) -> bool:
    """Whether a value looks up few elements, and is made of reduced ones besides."""
    value = x.data.data if isinstance(x, TensorBox) and isinstance(x.data, StorageBox) else None
    if not isinstance(value, Pointwise) or not is_on_gpu(value):
        return False
    if "indirect_indexing" not in value.inner_fn_opcount().used_ops:
        return False
    read = [V.graph.get_buffer(name) for name in value.get_read_names()]
    if not any(isinstance(buffer, ComputedBuffer) and isinstance(buffer.data, Reduction) for buffer in read):
        return False
    return max(_number(buffer.get_size()) for buffer in read) >= FEW_VALUES * _number(value.get_size())


def _number(sizes: Any) -> int:
    """Of elements; 0 if that is not known."""
    return int(V.graph.sizevars.optimization_hint(math.prod(sizes), fallback=0))


def _can_fuse_stored(scheduler: Any, node1: Any, node2: Any, score: int) -> bool:
    """Not with a reduction but one whose results it needs: with what sums it would be where it was."""
    names = _stored.get(V.graph, set[str]())
    for node, other in ((node1, node2), (node2, node1)):
        is_stored = not names.isdisjoint(node.get_buffer_names())
        if is_stored and other.is_reduction() and node.ancestors.isdisjoint(other.get_operation_names()):
            return False
    return _can_fuse(scheduler, node1, node2, score)
