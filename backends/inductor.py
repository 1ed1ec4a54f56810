"""TorchInductor: `torch.compile`'s compiler, under any partitioner."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from aotkit.backends.inductor_graphs.compiling import compile_inner, decompositions, fold_and_fuse
from aotkit.interfaces import Backend, always_available
from aotkit.passes import copy_repeated_gradients, keep_strides

# Elements of the largest tensor. Measured on an H200, GELU into layer normalisation, forward and backward: combined
# kernels save 12 us of 115 at 2**20 elements; at 2**22 they cost 20, and at 2**23 330.
MOST_TO_COMBINE = 2**20


def make_backend(
    *, launches_from_cpp: bool = False, unavailable: Callable[[], str | None] = always_available
) -> Backend:
    """Inductor.

    Args:
        launches_from_cpp: C++ makes the launches, and of small tensors one launch runs several kernels.
    """

    def compile_graph(gm: GraphModule, example_inputs: Sequence[Tensor], **kind: bool) -> Callable[..., Any]:
        if not launches_from_cpp:
            return compile_inner(gm, example_inputs, {}, **kind)
        sizes = [x.shape.numel() for x in example_inputs if isinstance(x, Tensor)]
        combine = all(isinstance(n, int) and n <= MOST_TO_COMBINE for n in sizes)
        return compile_inner(gm, example_inputs, {"combo_kernels": combine}, cpp_wrapper=True, **kind)

    def compile_backward(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
        copy_repeated_gradients(gm)
        return compile_graph(gm, example_inputs, is_backward=True)

    def compile_inference(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
        fold_and_fuse(gm, example_inputs)
        keep_strides(gm)
        return compile_graph(gm, example_inputs, is_inference=True)

    return Backend(
        fw_compiler=compile_graph,
        bw_compiler=compile_backward,
        inference_compiler=compile_inference,
        decompositions=decompositions,
        joint_pass=fold_and_fuse,
        reuses_saved=True,
        writes_inputs=True,
        unavailable=unavailable,
    )


backend = make_backend()
