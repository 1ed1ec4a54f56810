"""TorchInductor: `torch.compile`'s compiler, under any partitioner.

It is imported when it compiles: where graphs of an earlier process are taken, it is not needed.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from aotkit.interfaces import Backend, Boxed, always_available
from aotkit.passes import copy_repeated_gradients
from aotkit.stages import regions

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
        from aotkit.backends.inductor_graphs.compiling import compile_inner

        if not launches_from_cpp:
            return compile_inner(gm, example_inputs, {}, **kind)
        sizes = [x.shape.numel() for x in example_inputs if isinstance(x, Tensor)]
        combine = all(isinstance(n, int) and n <= MOST_TO_COMBINE for n in sizes)
        return compile_inner(gm, example_inputs, {"combo_kernels": combine}, cpp_wrapper=True, **kind)

    def compile_backward(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
        copy_repeated_gradients(gm)
        return compile_graph(gm, example_inputs, is_backward=True)

    def compile_inference(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
        return compile_graph(gm, example_inputs, is_inference=True)

    return Backend(
        fw_compiler=compile_graph,
        bw_compiler=compile_backward,
        inference_compiler=compile_inference,
        decompositions=_decompositions,
        joint_pass=_fold_and_fuse,
        reuses_saved=True,
        writes_inputs=True,
        load=_load,
        unavailable=unavailable,
        chunks=_of_chunks,
    )


def _fold_and_fuse(gm: GraphModule, inputs: Any) -> None:
    from aotkit.backends.inductor_graphs.compiling import fold_and_fuse

    fold_and_fuse(gm, inputs)


def _of_chunks() -> Backend:
    """The fuser: of a loss and its gradients in one graph, Inductor writes in float32 what it reads twice."""
    from aotkit.backends import fuser

    return regions.shared([("fuser", fuser.backend)], regions.Options())


def _decompositions() -> Mapping[Any, Callable[..., Any]]:
    from aotkit.backends.inductor_graphs.compiling import decompositions

    return decompositions()


def _load(data: Mapping[str, Any], files: Mapping[str, Path]) -> Boxed:
    from aotkit.backends.inductor_graphs.kept import load

    return load(data, files)


backend = make_backend()
