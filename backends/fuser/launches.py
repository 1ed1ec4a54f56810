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
from aotkit.backends.fuser.loops import lowered
from aotkit.backends.fuser.origins import Origins
from aotkit.backends.fuser.plan import Plan
from aotkit.backends.fuser.printing import printed
from aotkit.backends.fuser.schedule import Schedule, scheduled
from aotkit.backends.fuser.side_by_side import read_once
from aotkit.backends.fuser.templates import Templates, literal
from aotkit.backends.fuser.triton_code import HEADER, Writer
from aotkit.backends.fusion_definition.engine import Around
from aotkit.keep import write_whole
from aotkit.stages import Kernel
from aotkit.torch_private.tensors import Empty, empty_strided_on

_IMPORTING = threading.Lock()
Step = tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]  # a kernel, places of its arguments, numbers


@dataclass(frozen=True)
class Launch:
    """One kernel of a call.

    Attributes:
        buffers, scalars: which values it gets; buffers are inputs, then what the call allocates.
        sizes: the numbers that it gets after them, by name.
    """

    name: str
    code: str
    schedule: Schedule
    buffers: tuple[int, ...]
    scalars: tuple[int, ...]
    sizes: Mapping[str, int]


class Fused:
    """The kernels of a definition.

    Args:
        templates: of kernels for many sizes; None: of those that are given alone.
    """

    def __init__(self, definition: FusionDefinition, templates: Templates | None = None) -> None:
        loops, results = lowered(definition.outputs)
        self._outputs, self._lowered = definition.outputs, results
        inputs = len(definition.inputs)
        results, before = read_once(loops, results)
        self.plan = plan = Plan(loops, results, inputs)
        plan.originals.update(before)
        self._numbers = [i for i, x in enumerate(definition.inputs) if x.kind == "scalar"]
        self.launches: list[Launch] = []
        for n, kernel in enumerate(plan.kernels):
            schedule, name = scheduled(loops, kernel), f"kernel{n}"
            self.launches.append(_launch(Writer(loops, kernel, schedule), schedule, name, templates))
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
            for run, arguments, sizes in steps:
                run(*map(values.__getitem__, arguments), *sizes)
        else:
            for n, (run, arguments, sizes) in enumerate(steps):
                with around(n):
                    run(*map(values.__getitem__, arguments), *sizes)
        return list(map(values.__getitem__, self._results))

    def kernels(self, operations: Mapping[str, Sequence[Any]]) -> list[Kernel]:
        """What a call launches, in order.

        Args:
            operations: of a graph, by name, and the values that each returns.
        """
        origins = Origins(self._outputs, self._lowered, self.plan, operations)
        found = []
        for kernel, launch in zip(self.plan.kernels, self.launches, strict=True):
            lines = [printed(self.plan, kernel, launch.schedule, launch.name)]
            if launch.sizes:
                lines.append("  with " + ", ".join(f"{name} = {n}" for name, n in launch.sizes.items()))
            code = "\n".join([*lines, "", launch.code])
            found.append(Kernel(launch.name, origins.of(kernel), "Triton", code))
        return found

    def _compiled(self, device: torch.device) -> tuple[Empty, list[Step]]:
        """What makes buffers, and the kernels, which Triton compiles when they are called."""
        steps: list[Step] = []
        for launch in self.launches:
            kernel = getattr(imported(f"{HEADER}\n\n{launch.code}"), launch.name)[(*launch.schedule.grid, 1)]
            run = partial(kernel, num_warps=launch.schedule.warps)
            steps.append((run, (*launch.buffers, *launch.scalars), tuple(launch.sizes.values())))
        self._ready = empty_strided_on(device.type), steps
        return self._ready


def _launch(writer: Writer, schedule: Schedule, name: str, templates: Templates | None) -> Launch:
    text, sizes, plain = writer.text(), dict[str, int](), list[str]()
    if templates is None:
        text = literal(text)
    else:
        text, sizes, plain = templates.fitted(text, schedule.warps)
    plain = [*writer.scalars.values(), *plain]
    decorator = f"@triton.jit(do_not_specialize={plain!r})" if plain else "@triton.jit"
    arguments = ", ".join([*writer.buffers.values(), *writer.scalars.values(), *sizes])
    code = f"{decorator}\ndef {name}({arguments}):\n{text}"
    return Launch(name, code, schedule, tuple(writer.buffers), tuple(writer.scalars), sizes)


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
