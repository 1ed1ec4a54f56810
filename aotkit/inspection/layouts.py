"""In which layout a compiled forward graph keeps what it saves."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from aotkit.inspection.nodes import size_hint
from aotkit.inspection.saved import saved_placeholders

if TYPE_CHECKING:
    from aotkit.graphs import Graphs


def kept_as_copies(graphs: "Graphs", backward_inputs: Sequence[Any]) -> Iterator[str]:
    """The saved values that the caller holds, but not in the layout in which the backward graph is to get them.

    So a compiler keeps a copy of its own: Inductor does of the weights and images of convolutions.

    Args:
        backward_inputs: what the backward graph is compiled for.
    """
    assert graphs.backward is not None
    saved = saved_placeholders(graphs)
    for placeholder, given in zip(graphs.backward.graph.find_nodes(op="placeholder"), backward_inputs, strict=False):
        traced = placeholder.meta.get("val")
        is_saved = placeholder in saved and saved[placeholder].kind != "activation"
        if is_saved and isinstance(given, Tensor) and _layout(given) != _layout(traced):
            yield saved[placeholder].name


def _layout(value: Tensor) -> list[int | None]:
    """Its strides, but for dimensions of one element, along which nothing is ever reached."""
    return [size_hint(stride) for size, stride in zip(value.shape, value.stride(), strict=True) if size_hint(size) != 1]
