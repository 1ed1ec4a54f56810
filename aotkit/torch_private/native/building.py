"""Build the library of `call.cpp` and the headers: now, or in the background, where it must not be felt.

A library depends on the sources, on torch and on Python; the folder in which it lies is named by a digest of these.
"""

import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

NAME = "aotkit_native"
SOURCES = sorted(Path(__file__).parent.glob("*.cpp"))
MOST_SECONDS = 300


@functools.cache
def place() -> str:
    """Below a folder of libraries, where the one for these sources, this torch and this Python is."""
    sources = (path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("*.[ch]*")))
    versions = (torch.__version__, str(torch.version.git_version), str(sysconfig.get_config_var("EXT_SUFFIX")))
    key = "\n".join((*sources, *versions, *_flags()))
    return f"{hashlib.sha256(key.encode()).hexdigest()[:16]}/{NAME}.so"


def can_build() -> bool:
    """Whether there is a compiler. Not on systems other than Linux, where none has been tried."""
    return bool(compiler()) and sys.platform == "linux"


def build(path: Path) -> None:
    """Build the library now, unless it is there.

    It does not wait for one that is built in the background, which may take long.

    Raises:
        RuntimeError: the compiler fails.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.with_suffix(".lock"), wait=True):  # several processes may want it at the same time
        if path.exists():
            return
        aside = path.with_suffix(f".{os.getpid()}")
        try:
            done = subprocess.run(_command(aside), capture_output=True, text=True, timeout=MOST_SECONDS)
        except OSError as e:
            raise RuntimeError(f"aotkit's C++ does not compile: {e}") from e
        if done.returncode != 0:
            raise RuntimeError(f"aotkit's C++ does not compile: {done.stderr[-2000:]}")
        aside.replace(path)  # so that nobody loads half of it
        failure(path).unlink(missing_ok=True)


def begin(path: Path) -> None:
    """Have the library built in the background, unless it is there, or another process does that, or it has failed."""
    # A folder that cannot be written to, or no shell: everything runs in Python.
    with suppress(OSError, subprocess.SubprocessError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(_background_lock(path), wait=False) as lock:
            if lock is not None and not path.exists() and not failure(path).exists():
                _start(path, lock)


def is_begun(path: Path) -> bool:
    """Whether it is being built in the background, by any process."""
    if not _background_lock(path).exists():
        return False
    with _locked(_background_lock(path), wait=False) as lock:
        return lock is None


def failure(path: Path) -> Path:
    """What the compiler said when it failed to build the library in the background; there is none if it did not.

    It is not tried again with this compiler, but with another one, or an update of it.
    """
    return path.with_suffix(f".failed-{hashlib.sha256(compiler_version().encode()).hexdigest()[:8]}")


def _background_lock(path: Path) -> Path:
    return path.with_suffix(".background")


@contextmanager
def _locked(path: Path, wait: bool) -> Iterator[int | None]:
    """Hold a lock, and have the descriptor that does; None if another process holds it and is not waited for."""
    import fcntl  # there is none on Windows, but no library either

    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield None
            return
        yield file.fileno()


def _start(path: Path, lock: int) -> None:
    """Start the build. It is no child that anybody has to wait for: it may outlive this process, and has the lock then.

    It has a process group of its own, so that Ctrl-C does not reach it, but no session: with one, Linux' autogroups
    would give it as large a share as all of the program that started it, whatever its priority.
    """
    aside, log = path.with_suffix(".aside"), path.with_suffix(".log")
    into_place, as_failure = shlex.join(["mv", str(aside), str(path)]), shlex.join(["mv", str(log), str(failure(path))])
    go, tell = os.pipe()
    free = 4 if lock == 3 else 3  # what the shell starts aside has no standard input
    try:
        steps = f"read go <&{free} || exit; {shlex.join(_command(aside))} && {into_place} || {as_failure}"
        script = f"exec {free}<&0; ({steps}) >{shlex.quote(str(log))} 2>&1 & echo $!"
        started = subprocess.run(
            ["/bin/sh", "-c", script], check=True, stdin=go, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            pass_fds=(lock,), process_group=0,
        )  # fmt: skip
        _yield_to_all_else(int(started.stdout))
        os.write(tell, b"\n")
    finally:
        os.close(go)
        os.close(tell)


def _yield_to_all_else(process: int) -> None:
    """Have it run where a processor has nothing else to do.

    At a nice value of 19 it would still take turns of several ms from threads that others wait for at a barrier, as
    those of a kernel do. Beside a program that keeps all processors busy it advances by 0.3 % of one.
    """
    try:
        os.sched_setscheduler(process, os.SCHED_IDLE, os.sched_param(0))
    except OSError:  # where that is not allowed
        os.setpriority(os.PRIO_PROCESS, process, 19)


def compiler_version() -> str:
    """A text that is another one for another compiler, or an update of it."""
    program = shutil.which(compiler()[0]) if compiler() else None
    state = os.stat(program) if program else None
    return repr((compiler(), program and os.path.realpath(program), state and (state.st_mtime_ns, state.st_size)))


def compiler() -> list[str]:
    """The command of a C++ compiler; none if there is no such."""
    found = os.environ.get("CXX") or next(filter(None, map(shutil.which, ("g++", "clang++"))), None)
    return shlex.split(found) if found else []


def _flags() -> list[str]:
    return [
        "-O2", "-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        # A third less to compile: no functions of all operators, and the lock of the interpreter by its own functions.
        "-DAT_PER_OPERATOR_HEADERS", "-DPYBIND11_SIMPLE_GIL_MANAGEMENT",
    ]  # fmt: skip


def _command(output: Path, sources: Sequence[Path] = SOURCES) -> list[str]:
    """What compiles it. The libraries of torch are there when it is loaded: it need not know where they are."""
    root = Path(torch.__file__).parent
    include = (root / "include", root / "include/torch/csrc/api/include", sysconfig.get_path("include"))
    return [
        *compiler(), *_flags(), *(f"-I{path}" for path in include), *map(str, sources), f"-L{root / 'lib'}",
        "-ltorch_python", "-ltorch_cpu", "-lc10", "-o", str(output),
    ]  # fmt: skip
