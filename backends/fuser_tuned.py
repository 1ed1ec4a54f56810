"""The fuser, where schedules are measured: for each kernel the model's choice and a handful around it.

What has won is kept for the next process, which compiles that and measures nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from aotkit.backends import fuser
from aotkit.backends.fuser.tuning import Tuning
from aotkit.interfaces import Boxed
from aotkit.passes import graph_of
from aotkit.stages import boxed_call

ENGINES = {device: fuser.Engine(engine.target, Tuning()) for device, engine in fuser.ENGINES.items()}


def compile_graph(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """Kernels for a graph of operators that the fuser takes."""
    return fuser.compiled(ENGINES, gm)


def load(data: Mapping[str, Any], files: Mapping[str, Path]) -> Boxed:
    """The kernels of a region's graph again."""
    return boxed_call(compile_graph(graph_of(data["graph"]), ()))


backend = replace(fuser.backend, fw_compiler=compile_graph, load=load)
