"""nvFuser: NVIDIA's fusion compiler for pointwise operators and reductions, on CUDA devices.

It gets the regions of a graph that it takes: `declines` says why it does not take a node.
"""

import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from aotkit.backends.fusion_definition.decompositions import lowered_decompositions as decompositions
from aotkit.backends.fusion_definition.engine import Around
from aotkit.backends.fusion_definition.preparing import prepare
from aotkit.backends.fusion_definition.region import compile_region
from aotkit.backends.fusion_definition.table import declining
from aotkit.interfaces import Backend
from aotkit.stages import Kernel

NAME, MODULE = "nvFuser", "nvfuser_direct"
# The newest PyTorch that there is a wheel for, and the first one in which tensors are laid out otherwise.
BUILT_FOR, FIRST_DIFFERENT = "2.10", (2, 12)
SEE_ALSO = "PyTorch 2.11 also needs what docs/nvfuser.md of aotkit says."
CUDA_KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\s*\(")


@dataclass(frozen=True)
class Engine:
    """nvFuser, for `fusion_definition`."""

    module: Any
    name = NAME
    of_open_sizes, indexes = None, False

    @property
    def DataType(self) -> Any:
        """Its types."""
        return self.module.DataType

    def version(self) -> None:
        """Nothing that it tells."""

    def definition(self) -> Any:
        """A new one. Its `repr` is Python code, which shows six digits of a number."""
        return self.module.FusionDefinition()

    def kernels(
        self, definition: Any, inputs: list[Tensor], device: torch.device, operations: Mapping[str, Sequence[Any]]
    ) -> list[Kernel]:
        """The fusion as one: definition, what nvFuser's scheduler made of it, and CUDA code of several kernels."""
        definition.execute(inputs, device=device)  # compiles it
        cuda = str(definition.fec.get_cuda_kernel(inputs))
        names = CUDA_KERNEL.findall(cuda)
        code = f"{definition!r}\n\n{definition.fec.get_scheduled_ir(inputs)}\n\n{cuda}"
        name = names[0] if len(names) == 1 else "fusion"
        return [Kernel(name, tuple(operations), self.name, code, len(names) or None)]

    def observed(
        self,
        definition: Any,
        inputs: list[Tensor],
        device: torch.device,
        around: Around,
    ) -> list[Tensor]:
        """All of it at once."""
        with around(0):
            return definition.execute(inputs, device=device)  # type: ignore[no-any-return]


def compile_graph(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """Fuse a graph of operators that nvFuser takes; its kernels are compiled on the first call."""
    return compile_region(Engine(importlib.import_module(MODULE)), gm, "cuda")


def unavailable() -> str | None:
    """Why nvFuser cannot run here, and what to do about it."""
    version = torch.__version__.split("+")[0]
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) >= FIRST_DIFFERENT:
        return (
            f"its newest wheel is for PyTorch {BUILT_FOR} and would corrupt memory in {version}, where tensors are "
            f"laid out otherwise. Use PyTorch {FIRST_DIFFERENT[0]}.{FIRST_DIFFERENT[1] - 1}, or backend 'inductor'."
        )
    if not torch.cuda.is_available():
        return "there is no CUDA device. Use backend 'inductor'."
    if importlib.util.find_spec(MODULE) is None:
        wheel = f"nvfuser-cu{torch.version.cuda}-torch{BUILT_FOR}".replace(".", "")
        return f"it is not installed: `pip install {wheel}`, for Python 3.10 and 3.12; {SEE_ALSO}"
    try:
        importlib.import_module(MODULE)
    except Exception as e:
        return f"importing {MODULE}, built for PyTorch {BUILT_FOR}, raised {type(e).__name__}: {e}. {SEE_ALSO}"
    return None


backend = Backend(
    fw_compiler=compile_graph,
    decompositions=decompositions,
    joint_pass=prepare,
    fixed_sizes=True,
    declines=declining("cuda", NAME),
    unavailable=unavailable,
)
