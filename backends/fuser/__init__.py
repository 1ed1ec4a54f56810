"""Our own fuser: pointwise operations, reductions and what lies between, as kernels that are generated.

Definition -> values over axes -> loops -> kernels -> schedules -> code -> launches: a file for each.
"""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from aotkit.backends.fuser.definition import DataType, FusionDefinition
from aotkit.backends.fuser.launches import Fused
from aotkit.backends.fuser.operations import OPERATIONS, REDUCTIONS
from aotkit.backends.fuser.templates import Templates
from aotkit.backends.fuser.values import Value, below
from aotkit.backends.fusion_definition.engine import Around
from aotkit.backends.fusion_definition.region import compile_region
from aotkit.backends.fusion_definition.table import declining, lowered_decompositions
from aotkit.errors import CompileError
from aotkit.interfaces import Backend, Decompositions
from aotkit.passes import with_half_gelu
from aotkit.stages import Kernel

__all__ = ["backend"]
NAME = "the fuser"


class Definition(FusionDefinition):
    """One that runs."""

    def __init__(self, templates: Templates | None = None) -> None:
        super().__init__()
        self._templates = templates

    def __enter__(self) -> "Definition":
        return self

    def add_output(self, value: Value) -> None:
        """The next result.

        Raises:
            CompileError: something that it is computed of has no code.
        """
        super().add_output(value)
        if names := without_code(self.outputs[-1]):
            raise CompileError(f"{NAME} has no code for {', '.join(names)}")

    @cached_property
    def fused(self) -> Fused:
        """Its kernels; for these, neither a device nor Triton is needed."""
        return Fused(self, self._templates)

    @cached_property
    def execute(self) -> Fused:
        """A function of inputs and a device. Asking for it tells whether there is one."""
        return self.fused


def without_code(value: Value) -> list[str]:
    """Names of operations that a value is computed of, and that no kernel has code for."""
    found: dict[str, None] = {}
    for x in below([value]):
        name, table = (x.data[0], REDUCTIONS) if x.kind == "reduction" else (x.data, OPERATIONS)
        if x.kind in ("operation", "reduction") and name != "cast" and name not in table:
            found[name] = None
    return list(found)


class Engine:
    """What `fusion_definition` builds with.

    Args:
        templates: that definitions share, whose sizes differ; None: each has kernels of its own.
    """

    name, DataType = NAME, DataType

    def __init__(self, templates: Templates | None = None) -> None:
        self._templates = templates

    @cached_property
    def of_open_sizes(self) -> "Engine":
        """With kernels that serve many sizes."""
        return type(self)(Templates())

    def definition(self) -> Definition:
        """A new one."""
        return Definition(self._templates)

    def kernels(
        self,
        definition: Definition,
        inputs: list[Tensor],
        device: torch.device,
        operations: Mapping[str, Sequence[Any]],
    ) -> list[Kernel]:
        """Each launch, with its loops as text and its code."""
        return definition.fused.kernels(operations)

    def observed(
        self, definition: Definition, inputs: list[Tensor], device: torch.device, around: Around
    ) -> list[Tensor]:
        """One launch at a time."""
        return definition.fused(inputs, device, around)


ENGINE = Engine()


def compile_graph(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """Kernels for a graph of operators that `declines` takes; Triton compiles them on the first call."""
    return compile_region(ENGINE, gm, "cuda")


def decompositions() -> Decompositions:
    """Into operators of the table's."""
    return with_half_gelu(lowered_decompositions())


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
    declines=declining("cuda", NAME, ENGINE),
    unavailable=unavailable,
    horizontal=True,
)
