"""Our own fuser: pointwise operations, reductions and what lies between, as kernels that are generated.

Definition -> values over axes -> loops -> kernels -> schedules -> code -> launches: a file for each.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from aotkit.backends.fuser.cpp_target import Cpp
from aotkit.backends.fuser.definition import DataType, FusionDefinition
from aotkit.backends.fuser.launches import Fused, Target
from aotkit.backends.fuser.triton_target import Triton
from aotkit.backends.fuser.tuning import Tuning
from aotkit.backends.fuser.values import Value, below
from aotkit.backends.fusion_definition.decompositions import lowered_decompositions
from aotkit.backends.fusion_definition.engine import Around
from aotkit.backends.fusion_definition.preparing import prepare
from aotkit.backends.fusion_definition.region import compile_region
from aotkit.backends.fusion_definition.table import declining
from aotkit.errors import CompileError
from aotkit.interfaces import Backend, Boxed, Decompositions
from aotkit.passes import graph_of, with_half_gelu
from aotkit.stages import Kernel, boxed_call
from aotkit.torch_private.dispatch import pytree

__all__ = ["backend"]
NAME = "the fuser"


class Definition(FusionDefinition):
    """One that runs."""

    def __init__(self, target: Target, tuning: Tuning | None) -> None:
        super().__init__()
        self.target, self.tuning = target, tuning

    def __enter__(self) -> "Definition":
        return self

    def add_output(self, value: Value) -> None:
        """The next result.

        Raises:
            CompileError: something that it is computed of has no code.
        """
        super().add_output(value)
        if names := self._without_code(self.outputs[-1]):
            raise CompileError(f"{NAME} has no code for {', '.join(names)}")

    def _without_code(self, value: Value) -> list[str]:
        """Names of operations that a value is computed of, and that no kernel has code for."""
        found: dict[str, None] = {}
        for x in below([value]):
            is_sum = x.kind == "reduction"
            name, table = (x.data[0], self.target.reductions) if is_sum else (x.data, self.target.operations)
            if x.kind in ("operation", "reduction") and name != "cast" and name not in table:
                found[name] = None
        return list(found)

    @cached_property
    def fused(self) -> Fused:
        """Its kernels; for these, neither a device nor Triton is needed."""
        return Fused(self)

    @cached_property
    def execute(self) -> Fused:
        """A function of inputs and a device. Asking for it begins to compile."""
        self.fused.prepare()
        return self.fused


class Engine:
    """What `fusion_definition` builds with.

    Args:
        tuning: measures schedules; None: the model's choice it is.
    """

    name, DataType = NAME, DataType

    def __init__(self, target: Target, tuning: Tuning | None = None) -> None:
        self.target, self.tuning = target, tuning

    @cached_property
    def of_open_sizes(self) -> "Engine":
        """With kernels that serve many sizes."""
        return type(self)(self.target.of_open_sizes, self.tuning)

    @property
    def indexes(self) -> bool:
        """Not on a CPU, where ATen raises an error for an index out of range."""
        return self.target.indexes

    def version(self) -> str:
        """The compiler of its kernels, and how that is called.

        Of schedules, whether they are measured. Which win is not known yet; results of all are the same to rounding.
        """
        return self.target.version() + ("" if self.tuning is None else "\nschedules are measured")

    def definition(self) -> Definition:
        """A new one."""
        return Definition(self.target, self.tuning)

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


ENGINES = {"cuda": Engine(Triton()), "cpu": Engine(Cpp())}
ENGINE = ENGINES["cuda"]
_DECLINING = {device: declining(device, NAME, engine) for device, engine in ENGINES.items()}
_DEVICES: WeakKeyDictionary[Graph, str] = WeakKeyDictionary()


def compile_graph(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """Kernels for a graph of operators that `declines` takes; Triton compiles them on the first call."""
    return compiled(ENGINES, gm)


def compiled(engines: Mapping[str, Engine], gm: GraphModule) -> Callable[..., Any]:
    """Kernels of the engine for the type of device that a graph is of."""
    device = _device(gm.graph)
    return compile_region(engines[device], gm, device)


def load(data: Mapping[str, Any], files: Mapping[str, Path]) -> Boxed:
    """The kernels of a region's graph again: their code is kept, built for a CPU by aotkit, for a GPU by Triton."""
    return boxed_call(compile_graph(graph_of(data["graph"]), ()))


def declines(node: Node) -> str | None:
    """Why there is no kernel for a node. In a graph with tensors on a GPU, those on the CPU are ATen's."""
    device = _device(node.graph)
    reason = ENGINES[device].target.unavailable()
    return _DECLINING[device](node) if reason is None else f"for a tensor on '{device}', {reason}"


def _device(graph: Graph) -> str:
    """The type of device that a graph is of."""
    if graph not in _DEVICES:
        values = (value for n in graph.nodes for value in pytree.tree_leaves(n.meta.get("val")))
        is_cuda = any(isinstance(v, Tensor) and v.device.type == "cuda" for v in values)
        _DEVICES[graph] = "cuda" if is_cuda else "cpu"
    return _DEVICES[graph]


def decompositions() -> Decompositions:
    """Into operators of the table's."""
    return with_half_gelu(lowered_decompositions())


def unavailable() -> str | None:
    """Why there are no kernels here, and what to do about it."""
    reasons = [engine.target.unavailable() for engine in ENGINES.values()]
    return " And ".join(filter(None, reasons)) if all(reasons) else None


backend = Backend(
    fw_compiler=compile_graph,
    decompositions=decompositions,
    joint_pass=prepare,
    declines=declines,
    load=load,
    unavailable=unavailable,
    horizontal=True,
)
