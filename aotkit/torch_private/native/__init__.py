"""Build, keep and load the parts of a call that are worth C++: `call.cpp`, with the headers.

It is built once for each version of torch and Python, in the background, while everything runs in Python; compilations
after that use it. `AOTKIT_NATIVE=0` keeps to Python, `AOTKIT_NATIVE=1` waits for the build.
"""

import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import types
from collections.abc import Sequence
from pathlib import Path

import torch

NAME = "aotkit_native"
SOURCES = sorted(Path(__file__).parent.glob("*.cpp"))
MOST_SECONDS = 300

_loaded: types.ModuleType | None = None
_begun = False


def library() -> types.ModuleType | None:
    """The library, if it is wanted and there; else sees to it that it is being built.

    Raises:
        RuntimeError: `AOTKIT_NATIVE=1`, and it cannot be built.
    """
    global _loaded
    wanted = os.environ.get("AOTKIT_NATIVE", "")
    if wanted == "0":
        return None
    if _loaded is None:
        path = library_path()
        if path is not None and not path.exists():
            build() if wanted == "1" else _build_in_background()
        if path is not None and path.exists():
            _loaded = _load(path)
        elif wanted == "1":
            raise RuntimeError("AOTKIT_NATIVE=1, but there is no C++ compiler: install g++ or clang++, or set CXX.")
    return _loaded


def build() -> None:
    """Build the library now, unless it is there.

    Raises:
        RuntimeError: the compiler fails.
    """
    path = library_path()
    if path is None:
        return
    import fcntl  # there is none on Windows, but no library either

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes may want it at the same time
        if not path.exists():
            _compile(path)


def _compile(path: Path) -> None:
    done = subprocess.run(["/bin/sh", "-c", _script(path)], capture_output=True, text=True, timeout=MOST_SECONDS)
    if done.returncode != 0:
        raise RuntimeError(f"aotkit's C++ does not compile: {done.stderr[-2000:]}")


@functools.cache
def library_path() -> Path | None:
    """Where the library is kept; None where it cannot be built."""
    if not (command := _command()):
        return None
    sources = (path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("*.[ch]*")))
    key = "\n".join((*sources, torch.__version__, sys.version, *command))
    return cache_folder() / hashlib.sha256(key.encode()).hexdigest()[:16] / f"{NAME}.so"


def cache_folder() -> Path:
    """Where libraries are kept from one process to the next."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aotkit"


def _command(sources: Sequence[Path] = ()) -> list[str]:
    """The compiler's command line, up to the output.

    The name of the library depends on what the sources say, not on where they are: copies of aotkit may share it.
    """
    compiler = os.environ.get("CXX") or next(filter(None, map(shutil.which, ("g++", "clang++"))), None)
    if compiler is None or sys.platform != "linux":
        return []
    root = Path(torch.__file__).parent
    include = (root / "include", root / "include/torch/csrc/api/include", sysconfig.get_path("include"))
    return [
        *shlex.split(compiler), "-O2", "-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}", *(f"-I{path}" for path in include),
        *map(str, sources), f"-L{root / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{root / 'lib'}",
    ]  # fmt: skip


def _script(path: Path) -> str:
    """Shell commands that build it aside and then put it in its place, so that nobody loads half of it."""
    folder, aside, place = (shlex.quote(str(p)) for p in (path.parent, path.with_suffix(f".{os.getpid()}"), path))
    return f"mkdir -p {folder} && {shlex.join(_command(SOURCES))} -o {aside} && mv {aside} {place}"


def _build_in_background() -> None:
    global _begun
    path = library_path()
    if path is None or _begun:
        return
    _begun = True
    # Not a child that anybody has to wait for: it may outlive this process.
    script = f"({_script(path)}) >/dev/null 2>&1 </dev/null &"
    subprocess.run(["/bin/sh", "-c", script], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _load(path: Path) -> types.ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
    spec = importlib.util.spec_from_file_location(NAME, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
