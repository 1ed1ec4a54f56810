"""Inductor for work that is mostly launches: C++ makes them, and of small tensors one launch runs several kernels.

Compiling takes longer than with `inductor`: half a minute the first time on a machine, a second later.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from aotkit.backends.inductor_graphs.compiling import compile_inner, decompositions, fold_and_fuse
from aotkit.interfaces import Backend
from aotkit.passes import copy_repeated_gradients, keep_strides

# Elements of the largest tensor. Measured on an H200, GELU into layer normalisation, forward and backward: combined
# kernels save 12 us of 115 at 2**20 elements; at 2**22 they cost 20, and at 2**23 330.
MOST_TO_COMBINE = 2**20


def compile_forward(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """Compile a forward graph that has a backward graph."""
    return _compile(gm, example_inputs)


def compile_backward(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """Compile a backward graph."""
    copy_repeated_gradients(gm)
    return _compile(gm, example_inputs, is_backward=True)


def compile_inference(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """Compile the graph of a call without gradients."""
    fold_and_fuse(gm, example_inputs)
    keep_strides(gm)
    return _compile(gm, example_inputs, is_inference=True)


def _compile(gm: GraphModule, example_inputs: Sequence[Any], **kind: bool) -> Callable[..., Any]:
    sizes = [x.shape.numel() for x in example_inputs if isinstance(x, Tensor)]
    combine = all(isinstance(n, int) and n <= MOST_TO_COMBINE for n in sizes)
    return compile_inner(gm, example_inputs, {"combo_kernels": combine}, cpp_wrapper=True, **kind)


def unavailable() -> str | None:
    """Why it cannot run here."""
    if torch.cuda.is_available():
        return None
    return "there is no CUDA device. On a CPU there are no launches to save: use 'inductor'."


backend = Backend(
    fw_compiler=compile_forward,
    bw_compiler=compile_backward,
    inference_compiler=compile_inference,
    decompositions=decompositions,
    joint_pass=fold_and_fuse,
    reuses_saved=True,
    writes_inputs=True,
    unavailable=unavailable,
)
