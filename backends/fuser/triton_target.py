"""Triton's kernels: a module of them, which Triton compiles when they are called."""

import hashlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import torch

from aotkit.backends.fuser.in_place import overwritable
from aotkit.backends.fuser.kernels import Kernel
from aotkit.backends.fuser.launches import Launch, Step, own_folder
from aotkit.backends.fuser.loops import Loops, Result
from aotkit.backends.fuser.operations import OPERATIONS, REDUCTIONS
from aotkit.backends.fuser.plan import Plan
from aotkit.backends.fuser.schedule import PREFERENCES, scheduled
from aotkit.backends.fuser.side_by_side import read_once
from aotkit.backends.fuser.templates import Templates, literal, template
from aotkit.backends.fuser.triton_code import HEADER, Writer
from aotkit.keep import write_whole

_IMPORTING = threading.Lock()
ALIGNMENT = 16  # bytes, for which Triton compiles a kernel of its own


class Triton:
    """For CUDA devices.

    Args:
        templates: of kernels for many sizes; None: of those that are given alone.
    """

    language, indexes = "Triton", True
    operations: Mapping[str, Any] = OPERATIONS
    reductions: Mapping[str, Any] = REDUCTIONS
    preferences: Collection[str] = PREFERENCES

    def __init__(self, templates: Templates | None = None) -> None:
        self._templates = templates

    def unavailable(self) -> str | None:
        """Why there are no kernels here, and what to do about it."""
        if not torch.cuda.is_available():
            return "there is no CUDA device. Use backend 'inductor'."
        if importlib.util.find_spec("triton") is None:
            return "Triton is not installed: `pip install triton`."
        return None

    def version(self) -> str:
        """Triton's."""
        found = importlib.util.find_spec("triton") is not None
        return f"Triton {importlib.import_module('triton').__version__}" if found else "no Triton"

    def place(self) -> str:
        """The kind of GPU."""
        return torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"

    @property
    def of_open_sizes(self) -> "Triton":
        """With kernels that serve many sizes."""
        return Triton(Templates())

    def plan(self, loops: Loops, results: Sequence[Result], inputs: int) -> Plan:
        """Which values share a kernel."""
        results, before = read_once(loops, results)
        plan = Plan(loops, results, inputs)
        plan.originals.update(before)
        return plan

    def launch(self, loops: Loops, kernel: Kernel, name: str, preference: str = "") -> Launch:
        """The code of a kernel."""
        schedule = scheduled(loops, kernel, preference)
        writer = Writer(loops, kernel, schedule)
        text, sizes, plain = writer.text(), dict[str, int](), list[str]()
        same = f"{schedule.warps} warps\n{literal(text) if self._templates is None else template(text)}"
        if self._templates is None:
            text = literal(text)
        else:
            text, sizes, plain = self._templates.fitted(text, schedule.warps)
        plain = [*writer.scalars.values(), *plain]
        decorator = f"@triton.jit(do_not_specialize={plain!r})" if plain else "@triton.jit"
        arguments = ", ".join([*writer.buffers.values(), *writer.scalars.values(), *sizes])
        code = f"{decorator}\ndef {name}({arguments}):\n{text}"
        # Of smaller tiles, Triton may have several threads load an element.
        are_whole = schedule.row_block * schedule.inner_block >= 32 * schedule.warps
        in_place = overwritable(kernel, writer.accesses, one_thread=False) if are_whole else {}
        return Launch(name, code, schedule, tuple(writer.buffers), tuple(writer.scalars), sizes, same, in_place)

    def prepared(self, launches: Sequence[Launch], inputs: int) -> Callable[[], list[Step]]:
        """Nothing is begun before a call."""
        return partial(_steps, launches, inputs)


def _steps(launches: Sequence[Launch], inputs: int) -> list[Step]:
    steps: list[Step] = []
    for launch in launches:
        kernel = getattr(imported(f"{HEADER}\n\n{launch.code}"), launch.name)
        grid = (*launch.schedule.grid, 1)
        run: Callable[..., Any] = partial(kernel[grid], num_warps=launch.schedule.warps)
        if not launch.scalars:
            run = Direct(run, grid, [i for i, buffer in enumerate(launch.buffers) if buffer < inputs])
        steps.append((run, (*launch.buffers, *launch.scalars), tuple(launch.sizes.values())))
    return steps


class Direct:
    """A kernel, launched without Triton's look at its arguments, which takes longer than the launch.

    Triton compiles a kernel for the alignment of its tensors. What it compiled for aligned ones is launched while they
    are; otherwise it is asked.

    Args:
        run: what asks Triton, and returns what it launched. Numbers among its arguments are the same for each call.
        given: places of tensors that may be anywhere in memory.
    """

    def __init__(self, run: Callable[..., Any], grid: tuple[int, ...], given: Sequence[int]) -> None:
        self._run, self._grid, self._given = run, grid, given
        self._launch: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> None:
        for i in self._given:
            if args[i].data_ptr() % ALIGNMENT:
                self._run(*args)
                return
        if self._launch is not None:
            self._launch(*args)
        elif (compiled := self._run(*args)) is not None:  # Triton's interpreter compiles nothing
            self._launch = compiled[self._grid]


def imported(code: str) -> ModuleType:
    """A module with this text. It is in a file, where Triton reads its kernels."""
    digest = hashlib.sha256(code.encode()).hexdigest()[:32]
    name = f"aotkit_fuser_{digest}"
    with _IMPORTING:
        if name not in sys.modules:
            path = own_folder() / f"{name}.py"
            write_whole(path, code.encode())
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            sys.modules[name] = module
        return sys.modules[name]
