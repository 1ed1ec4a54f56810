"""Remember that this machine's compiler and loader passed Inductor's probes of the vector instructions.

To learn which ones it may use, Inductor compiles up to six small libraries, and in every later process loads each of
them in a new interpreter: 0.7 s with torch 2.13, 7 s with torch 2.11. The answer depends on things that seldom change.
"""

import functools
import hashlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

# Other lines of /proc/cpuinfo, such as the clock rate, change all the time.
_CPU = ("vendor", "cpu family", "model", "stepping", "flags", "features", "cpu implementer", "cpu part", "cpu variant")


@contextmanager
def remembered_probes() -> Iterator[None]:
    """While this lasts, probes that passed before, in Inductor's cache directory on a machine like this, pass at once.

    A probe that failed is made again in the next process: it may have failed for want of space or time. Nothing is
    remembered where the user decides, by `config.cpp.vec_isa_ok` or `config.cpp.simdlen`.
    """
    from torch._inductor import config, cpu_vec_isa

    kind: Any = cpu_vec_isa.VecISA
    probe = getattr(kind, "check_build", None)
    if probe is None or config.cpp.vec_isa_ok is not None or config.cpp.simdlen is not None:
        yield
        return

    def check_build(isa: Any, code: str) -> bool:
        if (machine := _machine()) is None:
            return bool(probe(isa, code))
        question = (machine, type(isa).__name__, isa.build_arch_flags(), isa._arch_flags, isa.build_macro(), code)
        answer = _directory() / hashlib.sha256(repr(question).encode()).hexdigest()
        if answer.exists():
            return True
        if passed := bool(probe(isa, code)):
            _write(answer)
        return passed

    kind.check_build = check_build
    try:
        yield
    finally:
        kind.check_build = probe


def _directory() -> Path:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir(), "aotkit_isa")


def _write(answer: Path) -> None:
    try:
        answer.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=answer.parent)
        os.close(descriptor)
        os.replace(name, answer)
    except OSError:  # the next process asks again
        pass


def _machine() -> tuple[Any, ...] | None:
    """What the answers depend on: CPU, operating system, compiler, loader, torch. None if that cannot be told."""
    from torch._inductor.cpp_builder import get_compiler_version_info, get_cpp_compiler

    try:
        compiler = shutil.which(get_cpp_compiler())
        if compiler is None or not (cpu := _cpu()):
            return None
        files = (compiler, os.path.realpath(compiler), sys.executable, torch._C.__file__)
        return (
            cpu,
            platform.platform(),
            get_compiler_version_info(compiler),
            [(f, os.stat(f).st_mtime_ns, os.stat(f).st_size) for f in files],
            (torch.__version__, torch.version.git_version),
            [os.environ.get(name) for name in ("LD_LIBRARY_PATH", "LD_PRELOAD")],
        )
    except Exception:  # no compiler, or another layout of torch: Inductor will say so itself
        return None


@functools.cache
def _cpu() -> tuple[str, ...]:
    """The kinds of CPU that this machine has: several, if its cores differ."""
    lines = Path("/proc/cpuinfo").read_text().lower().splitlines()
    return tuple(sorted({" ".join(line.split()) for line in lines if line.startswith(_CPU)}))
