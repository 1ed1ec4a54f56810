"""A definition, compiled for a target: its kernels, and what a call allocates and launches."""

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from aotkit.backends.fuser.definition import FusionDefinition
from aotkit.backends.fuser.kernels import Kernel as Nest
from aotkit.backends.fuser.loops import Loops, Result, lowered
from aotkit.backends.fuser.origins import Origins
from aotkit.backends.fuser.plan import Plan
from aotkit.backends.fuser.printing import printed
from aotkit.backends.fuser.search import Search
from aotkit.backends.fuser.short_sums import unrolled
from aotkit.backends.fuser.tuning import Tuning
from aotkit.backends.fusion_definition.engine import Around
from aotkit.stages import Kernel
from aotkit.torch_private.tensors import Empty, empty_strided_on

Step = tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]  # a kernel, places of its arguments, numbers


@dataclass(frozen=True)
class Launch:
    """One kernel of a call.

    Attributes:
        buffers, scalars: which values it gets; buffers are inputs, then what the call allocates.
        sizes: the numbers that it gets after them, by name.
        template: the code without its name, and without numbers that follow from open sizes, and how it is launched.
    """

    name: str
    code: str
    schedule: Any
    buffers: tuple[int, ...]
    scalars: tuple[int, ...]
    sizes: Mapping[str, int]
    template: str


class Target(Protocol):
    """What kernels are written for.

    Attributes:
        language: of the code.
        operations, reductions: for which there is code, by name.
        preferences: names of schedules that a kernel may have instead of the model's own choice.
    """

    language: str
    operations: Mapping[str, Any]
    reductions: Mapping[str, Any]

    @property
    def preferences(self) -> Collection[str]: ...

    def unavailable(self) -> str | None:
        """Why there are no kernels here, and what to do about it."""
        ...

    def version(self) -> str:
        """The compiler, and how it is called."""
        ...

    def place(self) -> str:
        """What decides how long its kernels take, besides what is installed."""
        ...

    @property
    def of_open_sizes(self) -> "Target":
        """The same with kernels that serve many sizes."""
        ...

    def plan(self, loops: Loops, results: Sequence[Result], inputs: int) -> tuple[Plan, Sequence[Result]]:
        """Which values share a kernel, and the results that these store."""
        ...

    def launch(self, loops: Loops, kernel: Nest, name: str, preference: str = "") -> Launch:
        """The code of a kernel; "": with the schedule that the model chooses."""
        ...

    def prepared(self, launches: Sequence[Launch], inputs: int) -> Callable[[], list[Step]]:
        """Begin to compile; the function waits until that is done.

        Args:
            inputs: how many of the buffers are given to a call; others are its own.
        """
        ...


class Fused:
    """The kernels of a definition."""

    def __init__(self, definition: FusionDefinition) -> None:
        loops, results = lowered(definition.outputs)
        self._target: Target = definition.target
        self._outputs, self._lowered = definition.outputs, results
        inputs = len(definition.inputs)
        results, before = unrolled(loops, results)
        plan, results = self._target.plan(loops, results, inputs)
        plan.originals.update(before)
        self.plan = plan
        self._numbers = [i for i, x in enumerate(definition.inputs) if x.kind == "scalar"]
        self.launches = [self._target.launch(loops, kernel, kernel.name(n)) for n, kernel in enumerate(plan.kernels)]
        types = [x.type for x in (*definition.inputs, *plan.buffers)]
        tuning: Tuning | None = definition.tuning
        self._search = None if tuning is None else Search(tuning, self._target, plan, self.launches, types)
        self._allocations = [_allocation(loops.sizes, buffer) for buffer in plan.buffers]
        order = [b.result for b in plan.buffers]
        self._results = [inputs + next(i for i, r in enumerate(order) if r is result) for result in results]
        self._prepared: Callable[[], list[Step]] | None = None
        self._ready: tuple[Empty, list[Step]] | None = None

    def prepare(self) -> None:
        """Begin to compile the kernels, if that takes a process of its own."""
        if self._prepared is None:
            self._prepared = self._target.prepared(self.launches, self.plan.inputs)
            if self._search is not None:
                self._search.prepare()

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
        if around is None and (self._search is None or not self._search.begins()):
            for run, arguments, sizes in steps:
                run(*map(values.__getitem__, arguments), *sizes)
        else:
            self._run_each(steps, values, around)
        return list(map(values.__getitem__, self._results))

    def _run_each(self, steps: list[Step], values: list[Any], around: Around | None) -> None:
        """Run the kernels by themselves; if their schedules are open, each with the one that it has from now on."""
        search = self._search if self._search is not None and self._search.begins() else None
        for n, step in enumerate(steps):
            if search is not None:
                steps[n] = step = search.chosen(n, step, values)
            run, arguments, sizes = step
            with around(n) if around is not None else nullcontext():
                run(*map(values.__getitem__, arguments), *sizes)

    def kernels(self, operations: Mapping[str, Sequence[Any]]) -> list[Kernel]:
        """What a call launches, in order.

        Args:
            operations: of a graph, by name, and the values that each returns.
        """
        origins = Origins(self._outputs, self._lowered, self.plan, operations)
        found = []
        for kernel, launch in zip(self.plan.kernels, self.launches, strict=True):
            lines = [printed(self.plan, kernel, launch.schedule, launch.name)]
            if self._search is not None and (told := self._search.told.get(launch.name)):
                lines.append(f"  {told}")
            if launch.sizes:
                lines.append("  with " + ", ".join(f"{name} = {n}" for name, n in launch.sizes.items()))
            code = "\n".join([*lines, "", launch.code])
            found.append(Kernel(launch.name, origins.of(kernel), self._target.language, code))
        return found

    def _compiled(self, device: torch.device) -> tuple[Empty, list[Step]]:
        """What makes buffers, and the kernels."""
        self.prepare()
        assert self._prepared is not None
        self._ready = empty_strided_on(device.type), self._prepared()
        return self._ready


def _allocation(sizes: dict[int, int], buffer: Any) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    if buffer.result is not None:
        return buffer.result.size, buffer.result.stride, buffer.type
    size = tuple(sizes[a] for a, _ in buffer.axes)
    return size, tuple(s for _, s in buffer.axes), buffer.type


def own_folder() -> Path:
    """A folder of this process, for code that a compiler reads; a forked one has another, and leaves its parent's."""
    return _folder(os.getpid())


@functools.cache
def _folder(process: int) -> Path:
    folder = tempfile.mkdtemp(prefix="aotkit-fuser-")
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == process else None)
    return Path(folder)
