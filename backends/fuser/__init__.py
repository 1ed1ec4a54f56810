"""Our own fuser: pointwise operations, reductions and what lies between, as kernels that are generated.

Definition -> values over axes -> loops -> kernels -> schedules -> code -> launches: a file for each.
"""

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from aotkit.backends.fuser.definition import DataType, FusionDefinition
from aotkit.backends.fusion_definition.region import compile_region
from aotkit.backends.fusion_definition.table import declining
from aotkit.interfaces import Backend, Decompositions
from aotkit.passes import with_half_gelu
from aotkit.torch_private.decompositions import core_decompositions

__all__ = ["backend"]
aten = torch.ops.aten
# Composite operators that the core set of ATen keeps.
COMPOSITE = [
    aten._softmax, aten._log_softmax, aten._native_batch_norm_legit, aten._native_batch_norm_legit.no_stats, aten.elu,
    aten.gelu, aten.gelu_backward, aten.hardtanh, aten.leaky_relu, aten.linalg_vector_norm, aten.logaddexp,
    aten.native_dropout_backward, aten.native_group_norm, aten.native_layer_norm,
]  # fmt: skip


class Definition(FusionDefinition):
    """One that runs."""

    def execute(self, inputs: Sequence[Tensor], *, device: torch.device) -> list[Tensor]:
        """The results, as new tensors."""
        if self.fused is None:
            from aotkit.backends.fuser.launches import Fused

            self.fused = Fused(self)
        results: list[Tensor] = self.fused(inputs, device)
        return results

    fused: Any = None


class Engine:
    """What `fusion_definition` builds with, as nvFuser's module is."""

    FusionDefinition, DataType = Definition, DataType


def compile_graph(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """Kernels for a graph of operators that `declines` takes."""
    return compile_region(Engine, gm, "cuda")


def decompositions() -> Decompositions:
    """Into operators of the table's."""
    return with_half_gelu(core_decompositions(COMPOSITE))


def unavailable() -> str | None:
    """Why there are no kernels here, and what to do about it."""
    if not torch.cuda.is_available():
        return "there is no CUDA device. Use backend 'inductor'."
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed: `pip install triton`."
    return None


backend = Backend(
    fw_compiler=compile_graph,
    decompositions=decompositions,
    fixed_sizes=True,
    declines=declining("cuda"),
    unavailable=unavailable,
    horizontal=True,
)
