"""A definition, compiled for a target: its kernels, and what a call allocates and launches."""

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from aotkit.backends.fuser.definition import FusionDefinition
from aotkit.backends.fuser.kernels import Kernel as Nest
from aotkit.backends.fuser.loops import Loops, Node, Result, lowered
from aotkit.backends.fuser.origins import Origins
from aotkit.backends.fuser.pieces import in_pieces
from aotkit.backends.fuser.plan import Plan
from aotkit.backends.fuser.printing import printed
from aotkit.backends.fuser.search import Search
from aotkit.backends.fuser.short_sums import unrolled
from aotkit.backends.fuser.tanh_terms import by_sigmoid
from aotkit.backends.fuser.tuning import Tuning
from aotkit.backends.fusion_definition.engine import Around
from aotkit.stages import Kernel
from aotkit.torch_private.tensors import Empty, InPlace, empty_strided_on, in_place

Step = tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]  # a kernel, places of its arguments, numbers
Form = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]  # size, strides, type
Made = tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...], torch.dtype]  # a buffer, its places, its form


@dataclass(frozen=True)
class Launch:
    """One kernel of a call.

    Attributes:
        buffers, scalars: which values it gets; buffers are inputs, then what the call allocates.
        sizes: the numbers that it gets after them, by name.
        template: the code without its name, and without numbers that follow from open sizes, and how it is launched.
        in_place: for buffers that it stores, those that it loads in whose memory it may.
    """

    name: str
    code: str
    schedule: Any
    buffers: tuple[int, ...]
    scalars: tuple[int, ...]
    sizes: Mapping[str, int]
    template: str
    in_place: Mapping[int, Sequence[int]]


class Target(Protocol):
    """What kernels are written for.

    Attributes:
        language: of the code.
        operations, reductions: for which there is code, by name.
        preferences: names of schedules that a kernel may have instead of the model's own choice.
        indexes: whether kernels may read by index, without an error for one that is out of range.
    """

    language: str
    indexes: bool
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

    def plan(self, loops: Loops, results: Sequence[Result], inputs: int) -> Plan:
        """Which values share a kernel."""
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
        before: dict[Node, Node] = {}
        for rewrite in (unrolled, in_pieces, by_sigmoid):
            results, new = rewrite(loops, results)
            before |= new
        plan = self._target.plan(loops, results, inputs)
        plan.originals.update(before)
        self.plan = plan
        self._numbers = [i for i, x in enumerate(definition.inputs) if x.kind == "scalar"]
        self.launches = [self._target.launch(loops, kernel, kernel.name(n)) for n, kernel in enumerate(plan.kernels)]
        types = [x.type for x in (*definition.inputs, *plan.buffers)]
        tuning: Tuning | None = definition.tuning
        self._search = None if tuning is None else Search(tuning, self._target, plan, self.launches, types)
        self._forms = [_form(loops.sizes, buffer) for buffer in plan.buffers]
        self._results = [plan.tensors[number] for number in range(len(definition.outputs))]
        self._prepared: Callable[[], list[Step]] | None = None
        self._ready: tuple[Empty, InPlace, list[tuple[Step, list[Made], list[int]]]] | None = None

    def prepare(self) -> None:
        """Begin to compile the kernels, if that takes a process of its own."""
        if self._prepared is None:
            self._prepared = self._target.prepared(self.launches, self.plan.inputs)
            if self._search is not None:
                self._search.prepare()

    def __call__(self, inputs: list[Any], device: torch.device, around: Around | None = None) -> list[Tensor]:
        """The results, as new tensors; some may be in the memory of inputs to which nothing but the list refers.

        Args:
            inputs: a list that is the call's own from now on; each is let go of after the last kernel that reads it.
            around: entered with the number of each launch.
        """
        if device.type == "cuda" and device.index != torch.cuda.current_device():  # on which Triton launches
            with torch.cuda.device(device):
                return self(inputs, device, around)
        new, placed, steps = self._ready or self._compiled(device)
        values = inputs
        for i in self._numbers:
            values[i] = values[i].item()
        values += [None] * len(self._forms)
        search = self._search if self._search is not None and self._search.begins() else None
        for n, (step, made, done) in enumerate(steps):
            for i, places, size, strides, dtype in made:
                if places and search is None:  # no name is given to what is there: it would be one more reference
                    values[i] = placed(values, places, size, strides)
                if values[i] is None:
                    values[i] = new(size, strides, dtype)
            if search is not None:
                step = search.chosen(n, step, values)
                steps[n] = step, made, done
            run, arguments, sizes = step
            if around is None:
                run(*map(values.__getitem__, arguments), *sizes)
            else:
                with around(n):
                    run(*map(values.__getitem__, arguments), *sizes)
            for i in done:
                values[i] = None
        if search is not None:  # other schedules have other places
            self._ready = new, placed, self._with_lives([step for step, _, _ in steps])
        return list(map(values.__getitem__, self._results))

    def kernels(self, operations: Mapping[str, Sequence[Any]]) -> list[Kernel]:
        """What a call launches, in order.

        Args:
            operations: of a graph, by name, and the values that each returns.
        """
        origins = Origins(self._outputs, self._lowered, self.plan, operations)
        found = []
        made, _ = self._lives()
        for kernel, launch, buffers in zip(self.plan.kernels, self.launches, made, strict=True):
            places = {i: able for i, able, *_ in buffers}
            lines = [printed(self.plan, kernel, launch.schedule, launch.name, places)]
            if self._search is not None and (told := self._search.told.get(launch.name)):
                lines.append(f"  {told}")
            if launch.sizes:
                lines.append("  with " + ", ".join(f"{name} = {n}" for name, n in launch.sizes.items()))
            code = "\n".join([*lines, "", launch.code])
            found.append(Kernel(launch.name, origins.of(kernel), self._target.language, code))
        return found

    def _compiled(self, device: torch.device) -> tuple[Empty, InPlace, list[tuple[Step, list[Made], list[int]]]]:
        """What makes buffers, in memory of their own or of others; kernels; what is made before each, done after."""
        self.prepare()
        assert self._prepared is not None
        self._ready = empty_strided_on(device.type), in_place(), self._with_lives(self._prepared())
        return self._ready

    def _with_lives(self, steps: Sequence[Step]) -> list[tuple[Step, list[Made], list[int]]]:
        return [*zip(steps, *self._lives(), strict=True)]

    def _lives(self) -> tuple[list[list[Made]], list[list[int]]]:
        return _lives(self.launches, self._forms, self.plan.inputs, self._results)


def _lives(
    launches: Sequence[Launch], forms: Sequence[Form], inputs: int, results: Sequence[int]
) -> tuple[list[list[Made]], list[list[int]]]:
    """The buffers that begin with each launch, with the places where they may be, and those that end with it."""
    first = {i: launch for launch in reversed(launches) for i in launch.buffers if i >= inputs}
    last = {i: launch for launch in launches for i in launch.buffers if i not in results}
    made, done = [], []
    for launch in launches:
        done.append([i for i in launch.buffers if last.get(i) is launch])
        places = {i: tuple(n for n in able if n in done[-1]) for i, able in launch.in_place.items()}
        made.append([(i, places.get(i, ()), *forms[i - inputs]) for i in launch.buffers if first.get(i) is launch])
    return made, done


def _form(sizes: dict[int, int], buffer: Any) -> Form:
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
