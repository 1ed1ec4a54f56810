"""A definition, compiled: its kernels as a module of Triton's, and what a call launches."""

import atexit
import functools
import hashlib
import importlib.util
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from aotkit.backends.fuser.definition import FusionDefinition
from aotkit.backends.fuser.kernels import Plan
from aotkit.backends.fuser.loops import lowered
from aotkit.backends.fuser.origins import Origins
from aotkit.backends.fuser.printing import printed
from aotkit.backends.fuser.schedule import Schedule, scheduled
from aotkit.backends.fuser.triton_code import HEADER, Writer
from aotkit.backends.fusion_definition.engine import Around
from aotkit.keep import write_whole
from aotkit.stages import Kernel
from aotkit.torch_private.tensors import Empty, empty_strided_on

_IMPORTING = threading.Lock()
Step = tuple[Callable[..., Any], tuple[int, ...]]  # a kernel, and the places of its arguments


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
        self._outputs, self._lowered = definition.outputs, results
        inputs = len(definition.inputs)
        self.plan = plan = Plan(loops, results, inputs)
        self._numbers = [i for i, x in enumerate(definition.inputs) if x.kind == "scalar"]
        self.launches: list[Launch] = []
        for n, kernel in enumerate(plan.kernels):
            schedule, name = scheduled(loops, kernel), f"kernel{n}"
            writer = Writer(loops, kernel, schedule, name)
            code = writer.text()
            self.launches.append(Launch(name, code, schedule, tuple(writer.buffers), tuple(writer.scalars)))
        self.code = "\n\n".join([HEADER, *(launch.code for launch in self.launches)])
        self._allocations = [_allocation(loops.sizes, buffer) for buffer in plan.buffers]
        order = [b.result for b in plan.buffers]
        self._results = [inputs + next(i for i, r in enumerate(order) if r is result) for result in results]
        self._ready: tuple[Empty, list[Step]] | None = None

    def __call__(self, inputs: Sequence[Tensor], device: torch.device, around: Around | None = None) -> list[Tensor]:
        """The results, as new tensors; `around`, if it is given, is entered with the number of each launch."""
        if device.type == "cuda" and device.index != torch.cuda.current_device():  # on which Triton launches
            with torch.cuda.device(device):
                return self(inputs, device, around)
        new, steps = self._ready or self._compiled(device)
        values: list[Any] = list(inputs)
        for i in self._numbers:
            values[i] = values[i].item()
        values += [new(*form) for form in self._allocations]
        if around is None:
            for run, arguments in steps:
                run(*map(values.__getitem__, arguments))
        else:
            for n, (run, arguments) in enumerate(steps):
                with around(n):
                    run(*map(values.__getitem__, arguments))
        return list(map(values.__getitem__, self._results))

    def kernels(self, operations: Mapping[str, Sequence[Any]]) -> list[Kernel]:
        """What a call launches, in order.

        Args:
            operations: of a graph, by name, and the values that each returns.
        """
        origins = Origins(self._outputs, self._lowered, self.plan, operations)
        found = []
        for kernel, launch in zip(self.plan.kernels, self.launches, strict=True):
            code = f"{printed(self.plan, kernel, launch.schedule, launch.name)}\n\n{launch.code}"
            found.append(Kernel(launch.name, origins.of(kernel), "Triton", code))
        return found

    def _compiled(self, device: torch.device) -> tuple[Empty, list[Step]]:
        """What makes buffers, and the kernels, which Triton compiles when they are called."""
        module = imported(self.code)
        steps: list[Step] = []
        for launch in self.launches:
            kernel = getattr(module, launch.name)[(*launch.schedule.grid, 1)]
            steps.append((partial(kernel, num_warps=launch.schedule.warps), (*launch.buffers, *launch.scalars)))
        self._ready = empty_strided_on(device.type), steps
        return self._ready


def _allocation(sizes: dict[int, int], buffer: Any) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    if buffer.result is not None:
        return buffer.result.size, buffer.result.stride, buffer.type
    size = tuple(sizes[a] for a, _ in buffer.axes)
    return size, tuple(s for _, s in buffer.axes), buffer.type


@functools.cache
def _folder() -> Path:
    """A folder of this process: what Triton compiles, it keeps itself."""
    folder = tempfile.mkdtemp(prefix="aotkit-fuser-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def imported(code: str) -> ModuleType:
    """A module with this text. It is in a file, where Triton reads its kernels."""
    digest = hashlib.sha256(code.encode()).hexdigest()[:32]
    name = f"aotkit_fuser_{digest}"
    with _IMPORTING:
        if name not in sys.modules:
            path = _folder() / f"{name}.py"
            write_whole(path, code.encode())
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            sys.modules[name] = module
        return sys.modules[name]
