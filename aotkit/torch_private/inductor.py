"""Inductor: its compiler for a graph, an operator of ours, its passes, its settings, and where it keeps its work."""

import copyreg
import functools
import hashlib
import math
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from sympy import Integer  # type: ignore[import-untyped]
from torch._decomp import get_decompositions
from torch._inductor import compile_fx, config, cpu_vec_isa, debug
from torch._inductor.cpp_builder import get_compiler_version_info, get_cpp_compiler
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.ir import Pointwise
from torch._inductor.lowering import lowerings, register_lowering
from torch._inductor.runtime import cache_dir_utils
from torch._inductor.utils import get_donated_idxs
from torch._inductor.virtualized import V, ops
from torch.fx import GraphModule

__all__ = [
    "cache_folder",
    "compile_graph",
    "decompositions",
    "inductor_for_functorch",
    "joint_passes",
    "lower_random_words",
    "setting",
    "triton_cache_folder",
]

_AOTKIT = Path(__file__).parents[1]
# Graph -> node of a seed -> number of a draw -> name of the tensor with its key.
_keys: WeakKeyDictionary[Any, dict[Any, dict[int, str]]] = WeakKeyDictionary()
RANDOM = {"fallback_random": True}  # torch's own kernels and generator: a call draws the numbers of eager
NOTING = {"trace.provenance_tracking_level": 1}  # which nodes of a graph are in which kernel


def compile_graph(
    gm: GraphModule,
    inputs: Sequence[Any],
    settings: Mapping[str, Any],
    *,
    cpp_wrapper: bool = False,
    **kind: bool,
) -> Any:
    """Compile one graph; the result is a `CompiledFxGraph`.

    Args:
        settings: of `torch._inductor.config`.
        cpp_wrapper: launch kernels from C++.
        kind: `is_backward` or `is_inference`.
    """
    more = {**compile_fx.get_cpp_wrapper_config(), "cpp_wrapper": True} if cpp_wrapper else {}
    # Inductor's cache of compiled graphs does not tell apart what may be overwritten in one and not in another.
    # Nor does it know of our code for random words.
    tag = f"{torch.compiler.config.cache_key_tag} {_own_code()}, donated {get_donated_idxs()}"
    with (
        config.patch({**RANDOM, **NOTING, **settings, **more}),
        torch.compiler.config.patch(cache_key_tag=tag),  # type: ignore[attr-defined]
        remembered_probes(),
        named_memory_formats(),
        debug.reset_provenance_globals(),
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
    """Another one whenever the code of random words is changed, which is in kernels."""
    files = [Path(__file__), *sorted((_AOTKIT / "random").glob("*.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def joint_passes(gm: GraphModule) -> None:
    """Inductor's passes over a whole graph, which it expects to have run: attention patterns, constant folding."""
    fake_mode = next((v.fake_mode for n in gm.graph.nodes if hasattr(v := n.meta.get("val"), "fake_mode")), None)
    with config.patch(RANDOM | NOTING), V.set_fake_mode(fake_mode):
        joint_graph_passes(gm)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Inductor's table, and what images consist of that are resized linearly; of their gradients it says nothing."""
    aten = torch.ops.aten
    resizes = [aten.upsample_linear1d.default, aten.upsample_bilinear2d.default, aten.upsample_trilinear3d.default]
    with config.patch(RANDOM):
        return {**select_decomp_table(), **get_decompositions(resizes)}


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
        answer = cache_folder() / "aotkit_isa" / hashlib.sha256(repr(question).encode()).hexdigest()
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


def _of_numbers(operation: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """The operator of `Number`, whose other operand may be a constant."""

    def computed(self: "Number", other: "Number | int") -> "Number":
        value = ops.constant(other, self.dtype) if isinstance(other, int) else other.value
        return Number(operation(self.value, value), self.dtype)

    return computed


@dataclass(frozen=True)
class Number:
    """An integer of a kernel, with the operators of an integer tensor."""

    value: Any
    dtype: torch.dtype

    __add__ = _of_numbers(ops.add)
    __mul__ = _of_numbers(ops.mul)
    __xor__ = _of_numbers(ops.bitwise_xor)
    __and__ = _of_numbers(ops.bitwise_and)
    __rshift__ = _of_numbers(ops.bitwise_right_shift)

    def to(self, dtype: torch.dtype) -> "Number":
        return Number(ops.to_dtype(self.value, dtype, src_dtype=self.dtype), dtype)


def lower_random_words(operator: Any, key: Callable[..., Any], hashed: Callable[..., Any], index_type: Any) -> None:
    """Teach Inductor an operator `(seed, number, size, device)`: a few operations for each element, without memory.

    Words are computed where they are read, as everything pointwise is. Each draw has a key, two 32-bit numbers made of
    the seed in 64-bit arithmetic. On a GPU it is a scalar in each kernel that reads the draw. A loop on a CPU would
    compute it anew for each vector, because whatever it stores might be the seed: there the keys of all draws of a
    graph are a small tensor, made first.

    Args:
        key: (seed, number) -> the two parts of a key, of tensors or of what has their operators.
        hashed: (index, *key) -> words, likewise.
        index_type: number of elements -> type of an element's index.
    """
    if operator in lowerings:
        return

    @register_lowering(operator, type_promotion_kind=None)
    def lowered(seed: Any, number: int, size: Sequence[Any], device: torch.device) -> Any:
        dtype = index_type(V.graph.current_node.meta["val"].numel())
        seed.realize()
        load = (_key_in_memory if stores_keys(device) else _key_in_kernel)(seed, number, key)

        def word(index: Sequence[Any]) -> Any:
            element = sum((i * math.prod(size[d + 1 :]) for d, i in enumerate(index)), Integer(0))
            # In a Triton kernel, an index with open sizes has 64 bits, whatever is asked for. `^ 0` makes a number of
            # it: Inductor leaves conversions of indices out.
            place = Number(ops.index_expr(element, dtype), dtype) ^ 0
            return hashed(place.to(dtype), *load()).value

        return Pointwise.create(device=device, dtype=torch.int32, inner_fn=word, ranges=[*size])


def stores_keys(device: torch.device) -> bool:
    return device.type == "cpu"


def _key_in_kernel(seed: Any, number: int, key: Callable[..., Any]) -> Callable[[], Sequence[Number]]:
    load = seed.make_loader()
    return lambda: key(Number(load(()), torch.int64), number)


def _key_in_memory(seed: Any, number: int, key: Callable[..., Any]) -> Callable[[], Sequence[Number]]:
    node = V.graph.current_node
    known = _keys.setdefault(V.graph, {})
    if node.args[0] not in known:
        draws = [n for n in node.graph.find_nodes(op="call_function", target=node.target) if n.args[0] is node.args[0]]
        known[node.args[0]] = _keys_of(seed, sorted({n.args[1] for n in draws}), key)
    load = V.graph.get_buffer(known[node.args[0]][number]).make_loader()
    return lambda: [Number(load((Integer(half),)), torch.int32) for half in (0, 1)]


def _keys_of(seed: Any, numbers: Sequence[int], key: Callable[..., Any]) -> dict[int, str]:
    """The names of tensors that have the keys of draws, two numbers each.

    They are copies of what one loop computes: a kernel that reads one has nothing in it that tells which draw it is,
    so that equal layers of a network have one kernel.
    """
    load, step = seed.make_loader(), math.gcd(*(n - numbers[0] for n in numbers)) or 1

    def part(index: Sequence[Any]) -> Any:
        draw, half = index
        number = Number(ops.index_expr(Integer(numbers[0]) + draw * step, torch.int64), torch.int64)
        # Inductor does arithmetic on indices by itself, and knows no overflow: `^ 0` as above.
        low, high = key(Number(load(()), torch.int64), number ^ 0)
        first = ops.eq(ops.index_expr(half, torch.int64), ops.constant(0, torch.int64))
        return ops.where(first, low.value, high.value)

    keys = _in_memory(part, [(numbers[-1] - numbers[0]) // step + 1, 2])

    def copied(place: Any) -> str:
        return str(_in_memory(lambda index: keys.make_loader()((place, *index)), [2]).get_name())

    return {number: copied(Integer((number - numbers[0]) // step)) for number in numbers}


def _in_memory(compute: Callable[[Sequence[Any]], Any], size: Sequence[int]) -> Any:
    """A small tensor of numbers on the CPU."""
    found = Pointwise.create(device=torch.device("cpu"), dtype=torch.int32, inner_fn=compute, ranges=size)
    found.realize()
    return found
