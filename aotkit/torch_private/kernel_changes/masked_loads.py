"""Values outside of a mask, where what is loaded under it was computed in the same kernel.

Inductor for GPUs hands the mask to the load. There is no load of what the kernel has at hand, and so no mask: padding
an image of one pixel repeats it, and averages of 3 x 3 places of it are 9 times too large (pytorch/pytorch#189895,
torch 2.11 to 2.13; 2.14.1 has it mended). Inception v3 with images of 96 x 96 has such averages.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from torch._inductor.codegen.triton import TritonKernelOverrides
from torch._inductor.virtualized import V

_masked: Callable[..., Any] = TritonKernelOverrides.masked


@contextmanager
def masked_values_at_hand() -> Iterator[None]:
    """For the time of compiling a graph. What other threads compile meanwhile gets the same."""
    with patch.object(TritonKernelOverrides, "masked", staticmethod(_masked_also_at_hand)):
        yield


def _masked_also_at_hand(mask: Any, body: Any, other: Any) -> Any:
    results = [value for node in body.graph.find_nodes(op="output") for value in node.args]
    at_hand = any(value.target == "load" and value.args[1] in V.kernel.cse.store_cache for value in results)
    return _masked(mask, _Computed(body) if at_hand else body, other)


class _Computed:
    """A body whose results count as computed, not loaded: Inductor then selects by the mask."""

    graph = SimpleNamespace(find_nodes=lambda op: [SimpleNamespace(args=[SimpleNamespace(target="computed")])])

    def __init__(self, body: Callable[[], Any]) -> None:
        self._body = body

    def __call__(self) -> Any:
        return self._body()
