"""Inductor: its compiler for one graph, its passes, its settings, and where it keeps what it compiled."""

import copyreg
import functools
import hashlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._inductor import compile_fx, config, cpu_vec_isa, debug
from torch._inductor.cpp_builder import get_compiler_version_info, get_cpp_compiler
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.runtime import cache_dir_utils
from torch._inductor.utils import get_donated_idxs
from torch._inductor.virtualized import V
from torch.fx import GraphModule

from aotkit.torch_private.kernel_changes import changed_kernels

__all__ = [
    "cache_folder",
    "compile_graph",
    "decompositions",
    "inductor_for_functorch",
    "joint_passes",
    "setting",
    "triton_cache_folder",
]

_AOTKIT = Path(__file__).parents[1]
RANDOM = {"fallback_random": True}  # torch's own kernels and generator: a call draws the numbers of eager
NOTING = {"trace.provenance_tracking_level": 1}  # which nodes of a graph are in which kernel


def compile_graph(
    gm: GraphModule,
    inputs: Sequence[Any],
    settings: Mapping[str, Any],
    *,
    is_fused: bool,
    cpp_wrapper: bool = False,
    **kind: bool,
) -> Any:
    """Compile one graph; the result is a `CompiledFxGraph`.

    Args:
        settings: of `torch._inductor.config`.
        is_fused: whether the graph has no matrix products, convolutions or attention.
        cpp_wrapper: launch kernels from C++.
        kind: `is_backward` or `is_inference`.
    """
    more = {**compile_fx.get_cpp_wrapper_config(), "cpp_wrapper": True} if cpp_wrapper else {}
    # Inductor's cache of compiled graphs does not tell apart what may be overwritten in one and not in another.
    # Nor does it know of our code.
    tag = f"{torch.compiler.config.cache_key_tag} {_own_code()}, donated {get_donated_idxs()}"
    with (
        config.patch({**RANDOM, **NOTING, **settings, **more}),
        torch.compiler.config.patch(cache_key_tag=tag),  # type: ignore[attr-defined]
        remembered_probes(),
        named_memory_formats(),
        debug.reset_provenance_globals(),
        changed_kernels(is_fused=is_fused),
    ):
        debug._pre_grad_graph_id = id(gm.graph)
        return compile_fx.compile_fx_inner(gm, inputs, cpp_wrapper=cpp_wrapper, **kind)  # type: ignore[arg-type]


@contextmanager
def named_memory_formats() -> Iterator[None]:
    """Have pickle look for memory formats in `torch`, not in whatever module of the program has imported torch first.

    They do not know the module that they are of. Inductor's key of a graph is made of what pickle writes, and the same
    graph would have another one in each program.
    """
    table = copyreg.dispatch_table
    if torch.memory_format in table:
        yield
        return
    table[torch.memory_format] = lambda memory_format: str(memory_format).removeprefix("torch.")
    try:
        yield
    finally:
        table.pop(torch.memory_format, None)


@functools.cache
def _own_code() -> str:
    """Another one whenever the code that changes kernels is changed, or that of random numbers, which is in them."""
    files = sorted(file for folder in ("torch_private", "random") for file in _AOTKIT.joinpath(folder).rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def joint_passes(gm: GraphModule) -> None:
    """Inductor's passes over a whole graph, which it expects to have run: attention patterns, constant folding."""
    fake_mode = next((v.fake_mode for n in gm.graph.nodes if hasattr(v := n.meta.get("val"), "fake_mode")), None)
    with config.patch(RANDOM | NOTING), V.set_fake_mode(fake_mode):
        joint_graph_passes(gm)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Inductor's table."""
    with config.patch(RANDOM):
        return dict(select_decomp_table())


def setting(name: str) -> Any:
    """The value of a setting of `torch._inductor.config`."""
    return getattr(config, name)


def cache_folder() -> Path:
    """Where Inductor keeps what it compiled.

    Raises:
        OSError: it cannot be made.
    """
    return Path(cache_dir_utils.cache_dir())


def triton_cache_folder() -> Path:
    """Where Triton keeps what it compiled."""
    return Path(cache_dir_utils.triton_cache_dir(0))


def inductor_for_functorch() -> dict[str, Any]:
    """Keywords of functorch's `aot_function` and `aot_module`, of what torch itself has: for comparison with aotkit."""
    from functorch.compile import min_cut_rematerialization_partition

    return {
        "fw_compiler": compile_fx.compile_fx_inner,
        "bw_compiler": partial(compile_fx.compile_fx_inner, is_backward=True),
        "inference_compiler": partial(compile_fx.compile_fx_inner, is_inference=True),
        "partition_fn": min_cut_rematerialization_partition,
        "decompositions": select_decomp_table(),
    }


# Other lines of /proc/cpuinfo, such as the clock rate, change all the time.
_CPU = ("vendor", "cpu family", "model", "stepping", "flags", "features", "cpu implementer", "cpu part", "cpu variant")


@contextmanager
def remembered_probes() -> Iterator[None]:
    """While this lasts, probes that passed before, in Inductor's cache directory on a machine like this, pass at once.

    To learn which vector instructions it may use, Inductor compiles up to ten small libraries, and in every later
    process loads each of them in a new interpreter: 0.7 s with torch 2.13, 7 s with torch 2.11. The answer depends on
    things that seldom change.

    Nor is a probe made of which one for more instructions has passed, with the same code: sets of instructions contain
    one another, and Inductor asks for each of these, the largest first, though that is the one that it takes.

    A probe that failed is made again in the next process: it may have failed for want of space or time. Nothing is
    remembered where the user decides, by `config.cpp.vec_isa_ok` or `config.cpp.simdlen`.
    """
    kind: Any = cpu_vec_isa.VecISA
    probe = getattr(kind, "check_build", None)
    if probe is None or config.cpp.vec_isa_ok is not None or config.cpp.simdlen is not None:
        yield
        return

    passed: list[tuple[frozenset[str], object]] = []  # flags of the compiler, and what else was asked

    def check_build(isa: Any, code: str) -> bool:
        if (machine := _machine()) is None:
            return bool(probe(isa, code))
        flags, rest = frozenset(isa.build_arch_flags().split()), (machine, isa.build_macro(), code)
        if any(flags <= more and rest == other for more, other in passed):
            return True
        if is_passed := remembered(isa, code, machine):
            passed.append((flags, rest))
        return is_passed

    def remembered(isa: Any, code: str, machine: tuple[Any, ...]) -> bool:
        question = (machine, type(isa).__name__, isa.build_arch_flags(), isa._arch_flags, isa.build_macro(), code)
        answer = _directory() / hashlib.sha256(repr(question).encode()).hexdigest()
        if answer.exists():
            return True
        if is_passed := bool(probe(isa, code)):
            _write(answer)
        return is_passed

    kind.check_build = check_build
    try:
        yield
    finally:
        kind.check_build = probe


def _directory() -> Path:
    return cache_folder() / "aotkit_isa"


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
