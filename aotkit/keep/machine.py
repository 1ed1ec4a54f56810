"""What a result depends on besides the program: hardware, drivers, libraries, and aotkit's own code."""

import functools
import hashlib
import os
import platform
import re
import sys
from pathlib import Path

import torch

# Variables of the environment that decide which kernels libraries run, or which libraries those are.
DECIDING = (
    "ATEN", "CUBLAS", "CUDNN", "DNNL", "GOMP", "KMP", "LD_", "MKL", "NVIDIA", "OMP", "ONEDNN", "PYTORCH", "TORCH",
    "TRITON",
)  # fmt: skip
# Other lines of /proc/cpuinfo, such as the clock rate, change all the time.
_CPU = re.compile(r"(?im)^(vendor|cpu family|model|stepping|flags|features|cpu implementer|cpu part|cpu variant).*$")


def machine() -> tuple[str, ...]:
    """One text for each thing that results depend on; another one wherever anything of it is another."""
    environment = sorted(f"{name}={value}" for name, value in os.environ.items() if _decides(name))
    threads = f"{torch.get_num_threads()} threads"  # which are in the code that Inductor writes for CPUs
    return (*installed(), threads, *environment)


def installed() -> tuple[str, ...]:
    """The same without what a process may have other than the last: threads and environment."""
    return (*_software(), *_devices(torch.cuda.is_available()))


def _decides(name: str) -> bool:
    # Where their tools and caches lie, Inductor and Triton note for themselves when they compile.
    is_place = name.startswith(("TORCHINDUCTOR_", "TRITON_")) and name.endswith(("_DIR", "_PATH"))
    return name.startswith(DECIDING) and not is_place


@functools.cache
def _software() -> tuple[str, ...]:
    return (
        f"torch {torch.__version__} {torch.version.git_version}",
        torch.__config__.show(),
        f"Python {sys.version}",
        platform.platform(),
        " ".join(sorted({line.group() for line in _CPU.finditer(_read("/proc/cpuinfo"))})),
        f"aotkit {_own_code()}",
    )


@functools.cache
def _devices(has_gpu: bool) -> tuple[str, ...]:
    if not has_gpu:
        return ()
    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    kinds = sorted({f"{gpu.name} {gpu.major}.{gpu.minor} {gpu.total_memory}" for gpu in gpus})
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return (*kinds, f"CUDA {torch.version.cuda}", f"cuDNN {cudnn}", _read("/proc/driver/nvidia/version"))


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:  # another system
        return ""


def _own_code() -> str:
    root = Path(__file__).parents[1]
    found = hashlib.sha256()
    # Not `rglob`: in a checkout, backends and partitioners are links.
    for directory, _, names in sorted(os.walk(root, followlinks=True)):
        for name in sorted(names):
            if name.endswith((".py", ".cpp", ".h")):
                found.update(Path(directory, name).read_bytes())
    return found.hexdigest()
