"""A definition, compiled: its kernels as a module of Triton's, and what a call launches."""

import hashlib
import importlib.util
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from aotkit.backends.fuser.definition import FusionDefinition
from aotkit.backends.fuser.kernels import Plan
from aotkit.backends.fuser.loops import lowered
from aotkit.backends.fuser.schedule import Schedule, scheduled
from aotkit.backends.fuser.triton_code import HEADER, Writer
from aotkit.keep import write_whole

_IMPORTING = threading.Lock()
_FOLDER = Path(tempfile.mkdtemp(prefix="aotkit-fuser-"))  # of this process; Triton keeps what it compiles


@dataclass(frozen=True)
class Launch:
    """One kernel of a call.

    Attributes:
        buffers, scalars: which values it gets; buffers are inputs, then what the call allocates.
    """

    name: str
    code: str
    schedule: Schedule
    buffers: tuple[int, ...]
    scalars: tuple[int, ...]


class Fused:
    """The kernels of a definition."""

    def __init__(self, definition: FusionDefinition) -> None:
        loops, results = lowered(definition.outputs)
        inputs = len(definition.inputs)
        self.plan = plan = Plan(loops, results, inputs)
        self._numbers = {i for i, x in enumerate(definition.inputs) if x.kind == "scalar"}
        self.launches: list[Launch] = []
        for n, kernel in enumerate(plan.kernels):
            schedule = scheduled(loops, kernel)
            writer = Writer(loops, kernel, schedule, f"kernel{n}")
            code = writer.text()
            self.launches.append(Launch(f"kernel{n}", code, schedule, tuple(writer.buffers), tuple(writer.scalars)))
        self.code = "\n\n".join([HEADER, *(launch.code for launch in self.launches)])
        self._allocations = [_allocation(loops.sizes, buffer) for buffer in plan.buffers]
        order = [b.result for b in plan.buffers]
        self._results = [inputs + next(i for i, r in enumerate(order) if r is result) for result in results]
        self._run: list[Any] | None = None

    def __call__(self, inputs: Sequence[Tensor], device: torch.device) -> list[Tensor]:
        values: list[Any] = [x.item() if i in self._numbers else x for i, x in enumerate(inputs)]
        values += [
            torch.empty_strided(size, stride, dtype=dtype, device=device) for size, stride, dtype in self._allocations
        ]
        if self._run is None:
            module = imported(self.code)
            self._run = [getattr(module, launch.name) for launch in self.launches]
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            for launch, run in zip(self.launches, self._run, strict=True):
                arguments = [values[i] for i in (*launch.buffers, *launch.scalars)]
                run[(*launch.schedule.grid, 1)](*arguments, num_warps=launch.schedule.warps)
        return [values[i] for i in self._results]


def _allocation(sizes: dict[int, int], buffer: Any) -> tuple[Sequence[int], Sequence[int], torch.dtype]:
    if buffer.result is not None:
        return buffer.result.size, buffer.result.stride, buffer.type
    size = tuple(sizes[a] for a, _ in buffer.axes)
    return size, tuple(s for _, s in buffer.axes), buffer.type


def imported(code: str) -> ModuleType:
    """A module with this text. It is in a file, where Triton reads its kernels."""
    digest = hashlib.sha256(code.encode()).hexdigest()[:32]
    name = f"aotkit_fuser_{digest}"
    with _IMPORTING:
        if name not in sys.modules:
            path = _FOLDER / f"{name}.py"
            write_whole(path, code.encode())
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            sys.modules[name] = module
        return sys.modules[name]
