"""`aotkit doctor`: what this machine has of what aotkit can use, and whether a compiled function runs on it."""

import argparse
import importlib.metadata
import importlib.util
import operator
import os
import platform
import re
import shlex
import shutil
import subprocess
import textwrap
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from aotkit.cli.listings import WIDTH, entries, status_text
from aotkit.cli.usage import UNAVAILABLE, Commands, add_command, needing_packages, progress, show
from aotkit.text import aligned

# Package, the module to import, and what it is for.
OPTIONAL = (
    ("triton", "triton", "`inductor` on a GPU, backend `fuser`"),
    ("nvfuser", "nvfuser_direct", "backend `nvfuser`"),
    ("matplotlib", "matplotlib", "plots"),
    ("transformers", "transformers", "models of `aotkit demo` and `aotkit bench`"),
    ("scipy", "scipy", "`aotkit check --all-operators`"),
)
_COMPARISONS = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for.

    Attributes:
        problem: why it is missing or of no use; None if it is as it should be.
    """

    subject: str
    found: str
    problem: str | None = None


@dataclass(frozen=True)
class Trial:
    """What became of a small function that was compiled with the defaults.

    Attributes:
        problem: how it failed; None if outputs and gradients are eager's.
    """

    backend: str
    device: str
    seconds: float
    problem: str | None


def add(commands: Commands) -> None:
    add_command(
        commands, "doctor", _doctor,
        "tell what this machine can run, and why not the rest; 0 if the defaults compile and run, else 3",
    )  # fmt: skip


def _doctor(options: argparse.Namespace) -> int:
    tell = progress()
    tell("looking at versions, devices and packages")
    with needing_packages():
        found = findings()
    from aotkit.registry import backend_status, partitioner_status

    backends, partitioners = backend_status(), partitioner_status()
    tell("compiling a small function")
    tried = trials()
    usable = all(trial.problem is None for trial in tried)
    data = {
        "schema": 1,
        "usable": usable,
        "findings": [asdict(finding) for finding in found],
        "backends": entries(backends),
        "partitioners": entries(partitioners),
        "trials": [asdict(trial) for trial in tried],
    }
    rows = [(f.subject, f"{f.found}: {f.problem}" if f.problem else f.found) for f in found]
    listed = [
        "\n".join(aligned(rows)), f"backends\n{status_text(backends)}", f"partitioners\n{status_text(partitioners)}",
    ]  # fmt: skip
    show(options, data, "\n\n".join([*listed, *(textwrap.fill(_verdict(trial), WIDTH) for trial in tried)]))
    return 0 if usable else UNAVAILABLE


def _verdict(trial: Trial) -> str:
    with_gradients = f"The default backend {trial.backend!r} on {trial.device}, a small function with gradients:"
    if trial.problem is None:
        return f"{with_gradients} compiled, ran and equals eager ({trial.seconds:.1f} s)."
    return f"{with_gradients} failed ({trial.seconds:.1f} s). {trial.problem}"


def findings() -> list[Finding]:
    """Versions, devices, compilers, packages, folders."""
    return [*_versions(), *_cuda(), _compiler(), _calls(), *_packages(), *_folders()]


def trials() -> list[Trial]:
    """Compile and run a small function, forward and backward, on each kind of device that there is."""
    import torch

    return [_trial(device) for device in ("cpu", *(["cuda"] if torch.cuda.is_available() else []))]


def _trial(device: str) -> Trial:
    import torch

    from aotkit.capture import default_backend
    from aotkit.compiler import compile

    factor = time.time() % 1  # another one each time: compilers shall not take what they compiled before

    def loss(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return ((x @ weight) * factor).sin().square().sum()

    start, problem = time.perf_counter(), None
    backend = default_backend(device).name
    try:
        weight = torch.randn(4, 4, device=device, requires_grad=True)
        torch.autograd.grad(compile(loss)(torch.randn(2, 4, device=device), weight), weight)
    except Exception as e:  # whatever it is, that is the diagnosis
        problem = f"{type(e).__name__}: {str(e).partition(chr(10))[0]}"
    return Trial(backend, device, time.perf_counter() - start, problem)


def _versions() -> Iterator[Finding]:
    import torch

    from aotkit import __version__

    yield Finding("aotkit", __version__)
    for subject, version in (("python", platform.python_version()), ("torch", torch.__version__)):
        supported = _required(subject)
        yield Finding(subject, version, None if within(version, supported) else f"aotkit supports {supported}")


def _required(name: str) -> str:
    """The range of versions that the installed aotkit declares: `>=2.11,<2.14`; "" where it is not installed."""
    try:
        about = importlib.metadata.metadata("aotkit")
    except importlib.metadata.PackageNotFoundError:
        return ""
    if name == "python":
        return about["Requires-Python"] or ""
    declared = (re.fullmatch(rf"{name}\b\s*([^;]*)", line) for line in about.get_all("Requires-Dist") or ())
    return next((match[1].strip() for match in declared if match), "")


def within(version: str, ranges: str) -> bool:
    """Whether a version is in `>=2.11,<2.14`. Only its numbers count: a pre-release is as the release."""
    from torch.torch_version import TorchVersion

    numbers = TorchVersion(re.match(r"[\d.]*\d", version)[0])  # type: ignore[index]
    return all(_COMPARISONS[op](numbers, bound) for op, bound in re.findall(r"([<>=!]=?)\s*([\d.]+)", ranges))


def _cuda() -> Iterator[Finding]:
    import torch

    driver = _first_line("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    if driver is not None:
        yield Finding("NVIDIA driver", driver)
    if torch.version.cuda is None:
        yield Finding("CUDA", "none", "this build of torch has no CUDA")
    elif not torch.cuda.is_available():
        hidden = "torch finds no device; is CUDA_VISIBLE_DEVICES set?"
        yield Finding("CUDA", torch.version.cuda, "there is no NVIDIA driver" if driver is None else hidden)
    else:
        yield Finding("CUDA", torch.version.cuda)
        for i in range(torch.cuda.device_count()):
            device: Any = torch.cuda.get_device_properties(i)
            capability, memory = f"{device.major}.{device.minor}", f"{device.total_memory / 2**30:.0f} GiB"
            yield Finding(f"cuda:{i}", f"{device.name}, compute capability {capability}, {memory}")


def _compiler() -> Finding:
    from aotkit.capture import cpp_compiler

    command = shlex.split(os.environ.get("CXX") or "") or [path for path in [cpp_compiler()] if path]
    if not command:
        return Finding("C++ compiler", "none", "`inductor` and calls in C++ need one; backend 'nop' is the default")
    version = _first_line(*command, "--version")
    missing = None if shutil.which(command[0]) else "the variable CXX names no program"
    return Finding("C++ compiler", shlex.join(command) + (f": {version}" if version else ""), missing)


def _calls() -> Finding:
    from aotkit.torch_private import native

    return Finding("calls in C++", *native.state())


def _packages() -> Iterator[Finding]:
    for package, module, purpose in OPTIONAL:
        if importlib.util.find_spec(module) is None:
            yield Finding(package, "none", f"not installed; for {purpose}")
            continue
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # a distribution of another name
            version = "installed"
        yield Finding(package, version)


def _folders() -> Iterator[Finding]:
    from aotkit.torch_private import native
    from aotkit.torch_private.inductor import cache_folder, triton_cache_folder

    try:
        folders = {"aotkit": native.cache_folder(), "inductor": cache_folder(), "triton": triton_cache_folder()}
    except OSError as e:
        yield Finding("caches", "none", str(e))
        return
    for owner, folder in folders.items():
        there = next(parent for parent in (folder, *folder.parents) if parent.exists())
        usable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
        yield Finding(f"cache of {owner}", str(folder), None if usable else f"{there} cannot be written to")


def _first_line(*command: str) -> str | None:
    """What a program prints first, or None where it does not run."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.partition("\n")[0] or None if done.returncode == 0 else None
