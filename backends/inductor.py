"""TorchInductor: `torch.compile`'s compiler, under any partitioner."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from aotkit.backends.inductor_graphs.compiling import compile_inner, decompositions, fold_and_fuse
from aotkit.interfaces import Backend
from aotkit.passes import copy_repeated_gradients, keep_strides


def compile_forward(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """Compile a forward graph that has a backward graph."""
    return compile_inner(gm, example_inputs, {})


def compile_backward(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """Compile a backward graph."""
    copy_repeated_gradients(gm)
    return compile_inner(gm, example_inputs, {}, is_backward=True)


def compile_inference(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """Compile the graph of a call without gradients."""
    fold_and_fuse(gm, example_inputs)
    keep_strides(gm)
    return compile_inner(gm, example_inputs, {}, is_inference=True)


backend = Backend(
    fw_compiler=compile_forward,
    bw_compiler=compile_backward,
    inference_compiler=compile_inference,
    decompositions=decompositions,
    joint_pass=fold_and_fuse,
    reuses_saved=True,
    writes_inputs=True,
)
