"""Compile one graph with Inductor, with what its passes and decompositions need before.

Random operators keep torch's own kernels and generator (`fallback_random`), so that a compiled function draws the
numbers that eager would draw from the same seed.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from aotkit.backends.inductor_graphs.called import called, told
from aotkit.backends.inductor_graphs.cpp_launches import CPP_LAUNCH, launched_graph
from aotkit.backends.inductor_graphs.cpu_numbers import leave_numbers_to_kernels
from aotkit.backends.inductor_graphs.eight_bits import with_right_bytes
from aotkit.backends.inductor_graphs.kept import data_of
from aotkit.backends.inductor_graphs.large_windows import with_cropped_windows
from aotkit.backends.inductor_graphs.mixed_sums import are_right
from aotkit.backends.inductor_graphs.padded_pixels import with_selected_pixels
from aotkit.backends.inductor_graphs.padding import share_padded
from aotkit.backends.inductor_graphs.resizes import with_right_resizes
from aotkit.backends.inductor_graphs.single_pixels import with_products_for_single_pixels
from aotkit.backends.inductor_graphs.stored_values import limits
from aotkit.backends.inductor_graphs.unaliased_results import results_apart
from aotkit.interfaces import Boxed
from aotkit.passes import generators_of, hidden_copies, share_viewed_memory, show_results, with_half_gelu
from aotkit.random import WORDS, hashed, index_type, kept, key
from aotkit.torch_private import inductor
from aotkit.torch_private.dispatch import tree_leaves
from aotkit.torch_private.inductor import compile_graph, joint_passes, lower_random_words, setting

# Operators that Inductor leaves to libraries, which round their inputs and results.
_STORING = {getattr(torch.ops.aten, name) for name in ("mm", "addmm", "bmm", "baddbmm", "convolution")}


def compile_inner(
    gm: GraphModule, example_inputs: Sequence[Any], settings: dict[str, Any], *, cpp_wrapper: bool = False, **kind: bool
) -> Boxed:
    """Compile one graph.

    Args:
        settings: of `torch._inductor.config`.
        cpp_wrapper: launch kernels from C++, if there is a CUDA device among the inputs.
        kind: `is_backward` or `is_inference`.
    """
    cpp_wrapper = cpp_wrapper and any(isinstance(x, Tensor) and x.is_cuda for x in example_inputs)
    if kind.get("is_backward"):
        # Else Inductor pads large gradients, and autograd copies them into the strides that it wants.
        show_results(gm)
    own = {
        "emulate_precision_casts": _rounds_between(gm),
        "allow_buffer_reuse": hands_memory_on(gm, example_inputs),
        "triton.mix_order_reduction": setting("triton.mix_order_reduction") and are_right(gm),
        **limits(gm),
    }
    if generators_of(gm):  # in a graph that Inductor has kept is a copy of it, which draws by itself
        own["fx_graph_cache"] = False
    lower_random_words(WORDS, key, hashed, index_type)
    compiled = compile_graph(gm, example_inputs, own | settings, cpp_wrapper=cpp_wrapper, **kind)
    if cpp_wrapper:
        return told(launched_graph(compiled), compiled, CPP_LAUNCH)
    run: Any = called(compiled, all(map(_is_fixed, example_inputs)))
    run.data = functools.partial(data_of, compiled)
    return run  # type: ignore[no-any-return]


def _is_fixed(value: Any) -> bool:
    return isinstance(value, Tensor) and all(type(n) is int for n in (*value.shape, *value.stride()))


def hands_memory_on(gm: GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether Inductor may keep the memory of a value that is over for a later one of the same size.

    On a GPU that saves an allocation, 2 to 4 us, in a network whose launches take longer than its kernels. Under a
    small `peak`, Llama's kind held 7 to 10 % too much. On a CPU, where new memory is mapped page by page, it saves
    more.
    """
    return not gm.meta.get("memory_limited") or not any(isinstance(x, Tensor) and x.is_cuda for x in inputs)


def _rounds_between(gm: GraphModule) -> bool:
    """Whether a graph converts to a narrower type and back, with nothing in between that stores the narrow values.

    Inductor computes such values in float32 and leaves the conversions out, unless it is told to emulate them.
    """
    narrowed: set[Any] = set()
    for node in gm.graph.nodes:
        sources = [n for n in node.all_input_nodes if _digits(n)]
        if not sources or getattr(node.target, "overloadpacket", None) in _STORING:
            continue
        if any(n in narrowed and _digits(n) < _digits(node) for n in sources):
            return True
        if 0 < _digits(node) < max(map(_digits, sources)) or any(n in narrowed for n in sources):
            narrowed.add(node)
    return False


def _digits(node: Any) -> float:
    """How exact the floating-point type of a node's value, or of the first of several, is; 0 if it has none."""
    values = tree_leaves(node.meta.get("val"))
    types = [v.dtype for v in values if isinstance(v, Tensor) and v.is_floating_point()]
    return 1 / torch.finfo(types[0]).eps if types else 0.0


def fold_and_fuse(gm: GraphModule, inputs: Any) -> None:
    """Inductor's passes over a whole graph, and ours around them."""
    with hidden_copies(gm), results_apart(gm):
        joint_passes(gm)
    share_padded(gm)
    share_viewed_memory(gm)
    leave_numbers_to_kernels(gm)


def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Inductor's table, with some of our own.

    Without dropout: decomposed, it would draw other numbers than eager. Shared random words stay: Inductor is taught
    how to compute them.
    """
    table = with_right_bytes(with_half_gelu(inductor.decompositions()))
    table = with_products_for_single_pixels(with_selected_pixels(with_cropped_windows(table)))
    table = with_right_resizes(table)
    table.pop(torch.ops.aten.native_dropout.default, None)
    return {**table, WORDS: kept}
