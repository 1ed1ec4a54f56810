"""Triton's kernels: a module of them, which Triton compiles when they are called."""

import atexit
import functools
import hashlib
import importlib.util
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from aotkit.backends.fuser.kernels import Kernel, Plan
from aotkit.backends.fuser.launches import Launch, Step
from aotkit.backends.fuser.loops import Loops, Result
from aotkit.backends.fuser.operations import OPERATIONS, REDUCTIONS
from aotkit.backends.fuser.schedule import scheduled
from aotkit.backends.fuser.triton_code import HEADER, Writer
from aotkit.keep import write_whole

_IMPORTING = threading.Lock()


class Triton:
    """For CUDA devices."""

    language = "Triton"
    operations: Mapping[str, Any] = OPERATIONS
    reductions: Mapping[str, Any] = REDUCTIONS

    def unavailable(self) -> str | None:
        """Why there are no kernels here, and what to do about it."""
        if not torch.cuda.is_available():
            return "there is no CUDA device. Use backend 'inductor'."
        if importlib.util.find_spec("triton") is None:
            return "Triton is not installed: `pip install triton`."
        return None

    def plan(self, loops: Loops, results: Sequence[Result], inputs: int) -> Plan:
        """Which values share a kernel."""
        return Plan(loops, results, inputs)

    def launch(self, loops: Loops, kernel: Kernel, name: str) -> Launch:
        """The code of a kernel."""
        schedule = scheduled(loops, kernel)
        writer = Writer(loops, kernel, schedule, name)
        return Launch(name, writer.text(), schedule, tuple(writer.buffers), tuple(writer.scalars))

    def code(self, launches: Sequence[Launch]) -> str:
        """That of all."""
        return "\n\n".join([HEADER, *(launch.code for launch in launches)])

    def prepared(self, code: str, launches: Sequence[Launch]) -> Callable[[], list[Step]]:
        """Nothing is begun before a call."""
        return partial(_steps, code, launches)


def _steps(code: str, launches: Sequence[Launch]) -> list[Step]:
    module = imported(code)
    steps: list[Step] = []
    for launch in launches:
        kernel = getattr(module, launch.name)[(*launch.schedule.grid, 1)]
        steps.append((partial(kernel, num_warps=launch.schedule.warps), (*launch.buffers, *launch.scalars)))
    return steps


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
