"""C++ kernels: a library of all that a definition has, built by the machine's compiler and kept for the next process.

Threads are those of the OpenMP runtime that torch has loaded, as many as torch has when a kernel is called.
"""

import ctypes
import functools
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aotkit.backends.fuser.cpp_code import Writer
from aotkit.backends.fuser.cpp_operations import OPERATIONS, REDUCTIONS
from aotkit.backends.fuser.cpp_schedule import PREFERENCES, CpuPlan, scheduled
from aotkit.backends.fuser.kernels import Kernel
from aotkit.backends.fuser.launches import Launch, Step, own_folder
from aotkit.backends.fuser.loops import Loops, Result
from aotkit.backends.fuser.plan import Plan
from aotkit.errors import CompileError
from aotkit.keep import installed, keep, kept, kept_file, name_of
from aotkit.torch_private.native.building import can_build, compiler, compiler_version

KIND = "fuser"
MOST_SECONDS = 300
# Without `-ffast-math`: NaN and infinities are values like others, and sums are not added up in another order. Nothing
# is contracted, either: x * x - y * y is 0 where x is y, as in ATen.
FLAGS = (
    "-std=c++17", "-O2", "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native", "-fPIC",
    "-shared", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-fwrapv", "-w",
)  # fmt: skip


class Cpp:
    """For CPUs."""

    language, indexes = "C++", False
    operations: Mapping[str, Any] = OPERATIONS
    reductions: Mapping[str, Any] = REDUCTIONS

    def unavailable(self) -> str | None:
        """Why there are no kernels here, and what to do about it."""
        return None if can_build() else "there is no C++ compiler: install g++ or clang++, or set CXX."

    def version(self) -> str:
        """The compiler, and how it is called."""
        return "\n".join((compiler_version(), *FLAGS))

    @property
    def preferences(self) -> Collection[str]:
        """Those of threads only where there are several."""
        several = torch.get_num_threads() > 1
        return [name for name, factors in PREFERENCES.items() if several or "threads" not in factors]

    def place(self) -> str:
        """How many threads there are."""
        return f"{torch.get_num_threads()} threads"

    @property
    def of_open_sizes(self) -> "Cpp":
        """The same: there are kernels for each size."""
        return self

    def plan(self, loops: Loops, results: Sequence[Result], inputs: int) -> Plan:
        """Which values share a kernel."""
        return CpuPlan(loops, results, inputs)

    def launch(self, loops: Loops, kernel: Kernel, name: str, preference: str = "") -> Launch:
        """The code of a kernel."""
        schedule = scheduled(loops, kernel, preference)
        writer = Writer(loops, kernel, schedule, name)
        text = writer.text()
        template = text.replace(name, "kernel", 1)
        return Launch(name, text, schedule, tuple(writer.buffers), (), {}, template, writer.in_place)

    def prepared(self, launches: Sequence[Launch], inputs: int) -> Callable[[], list[Step]]:
        """Begin to build the library, unless it is kept; the function waits for it."""
        build = Build("\n".join([_headers(), *(launch.code for launch in launches)]))
        return lambda: _steps(build.library(), launches)


def _steps(library: ctypes.CDLL, launches: Sequence[Launch]) -> list[Step]:
    library.use_threads(*_openmp())
    steps: list[Step] = []
    for launch in launches:
        function = getattr(library, launch.name)
        function.argtypes = [ctypes.c_void_p] * len(launch.buffers) + [ctypes.c_int64]
        function.restype = None
        steps.append((partial(_call, function), launch.buffers, ()))
    return steps


def _call(function: Callable[..., None], *tensors: Tensor) -> None:
    function(*map(Tensor.data_ptr, tensors), torch.get_num_threads() if _has_threads else 1)


# A forked process has none of its parent's threads, and OpenMP waits for them forever.
_has_threads = True


def _without_threads() -> None:
    global _has_threads
    _has_threads = False


os.register_at_fork(after_in_child=_without_threads)


@functools.cache
def _openmp() -> tuple[ctypes.c_void_p, ...]:
    """Functions of the OpenMP runtime of torch's: what runs one in all threads, the number of a thread, how many."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
    if not all(hasattr(library, name) for name in names):  # one thread, then
        return (ctypes.c_void_p(),) * len(names)
    return tuple(ctypes.cast(getattr(library, name), ctypes.c_void_p) for name in names)


@functools.cache
def _headers() -> str:
    names = ("cpp_lanes.h", "cpp_functions.h", "cpp_packs.h", "cpp_threads.h")
    return "\n".join((Path(__file__).parent / name).read_text(encoding="utf-8") for name in names)


class Build:
    """A library while it is built, by a process of its own.

    As many are built at a time as there are processors.
    """

    running: list["Build"] = []  # noqa: RUF012

    def __init__(self, code: str) -> None:
        self._code, self._process = code, os.getpid()
        self._parts = (*installed(), compiler_version(), *FLAGS, code)
        self._library: ctypes.CDLL | None = None
        record = kept(KIND, self._parts)
        self._path = kept_file(record["library"]) if record is not None else None
        if self._path is None:
            self._start()

    def library(self) -> ctypes.CDLL:
        """The library, loaded.

        Raises:
            CompileError: the compiler fails.
        """
        if self._path is None:
            if self._process != os.getpid():  # it was the parent's
                self._process = os.getpid()
                self._start()
            self._path = self._built()
        if self._library is None:
            self._library = ctypes.CDLL(str(self._path))
        return self._library

    def _start(self) -> None:
        while len([b for b in self.running if b.is_running()]) >= (os.cpu_count() or 1):
            self.running[0].wait()
            self.running.pop(0)
        folder = Path(tempfile.mkdtemp(dir=own_folder()))
        self._source, self._output, self._log = folder / "kernels.cpp", folder / "kernels.so", folder / "log"
        self._source.write_text(self._code, encoding="utf-8")
        command = [*compiler(), *FLAGS, str(self._source), "-o", str(self._output), "-lm"]
        with self._log.open("wb") as log:
            self._running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.running.append(self)

    def is_running(self) -> bool:
        """Whether the compiler has not ended."""
        return self._running.poll() is None

    def wait(self) -> int:
        """Until it has."""
        return self._running.wait(MOST_SECONDS)

    def _built(self) -> Path:
        failed = self.wait() != 0
        if self in self.running:
            self.running.remove(self)
        if failed or not self._output.exists():
            raise CompileError(f"the fuser's C++ does not compile: {self._log.read_text(errors='replace')[-2000:]}")
        content = self._output.read_bytes()
        name = name_of(content, ".so")
        keep(KIND, self._parts, {"library": name}, {name: content})
        return self._output
