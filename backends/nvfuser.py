"""nvFuser: NVIDIA's fusion compiler for pointwise operators and reductions, on CUDA devices.

It gets the regions of a graph that it takes: `declines` says why it does not take a node.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from aotkit.backends.fusion_definition.library import load, unavailable
from aotkit.backends.fusion_definition.region import compile_region
from aotkit.backends.fusion_definition.table import declining
from aotkit.interfaces import Backend, Decompositions
from aotkit.torch_private.decompositions import core_decompositions

aten = torch.ops.aten
# Composite operators that the core set of ATen keeps.
COMPOSITE = [
    aten._softmax,
    aten._log_softmax,
    aten._native_batch_norm_legit,
    aten._native_batch_norm_legit.no_stats,
    aten.elu,
    aten.gelu,
    aten.hardtanh,
    aten.leaky_relu,
    aten.linalg_vector_norm,
    aten.logaddexp,
    aten.native_dropout_backward,
    aten.native_group_norm,
    aten.native_layer_norm,
]


def compile_graph(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """Fuse a graph of operators that nvFuser takes; its kernels are compiled on the first call.

    What it returns has `definition`, and `scheduled(*inputs)` and `cuda(*inputs)`, which are what nvFuser made of it.
    """
    return compile_region(load(), gm, "cuda")


def decompositions() -> Decompositions:
    """Into the operators of nvFuser's."""
    return core_decompositions(COMPOSITE)


backend = Backend(
    fw_compiler=compile_graph,
    decompositions=decompositions,
    fixed_sizes=True,
    declines=declining("cuda"),
    unavailable=unavailable,
)
