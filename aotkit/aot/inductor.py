"""What backends need of Inductor's private parts: its compiler for one graph, and the call without its extras.

Random operators keep torch's own kernels and generator (`fallback_random`), so that a compiled function draws the
numbers that eager would draw from the same seed.

Inductor's own entry costs 0.7 us, and the code that it writes begins with an assertion per input, 0.25 us each. Here
one guard checks all inputs at once; assertions about what other libraries' kernels return stay.
"""

import functools
import hashlib
import linecache
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MethodType
from typing import Any

import torch
import torch._inductor.config as config
from torch import Tensor
from torch._inductor import compile_fx
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.utils import get_donated_idxs
from torch._inductor.virtualized import V
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from aotkit.aot.alignment import aligned, within_alignment
from aotkit.aot.call_frames import with_room_for_calls
from aotkit.aot.cpp_launches import CPP_LAUNCH, launched_graph
from aotkit.aot.cpu_numbers import leave_numbers_to_kernels
from aotkit.aot.eight_bits import with_right_bytes
from aotkit.aot.half_gelu import realize_opcount_threshold, with_half_gelu
from aotkit.aot.isa import remembered_probes
from aotkit.aot.kernel_changes import changed_kernels
from aotkit.aot.large_windows import with_cropped_windows
from aotkit.aot.output_strides import show_results
from aotkit.aot.own_copies import hidden_copies
from aotkit.aot.padding import share_padded
from aotkit.aot.provenance import NOTING, kernels_of, noting_origins, with_launches
from aotkit.aot.results_apart import results_apart
from aotkit.aot.single_pixels import with_products_for_single_pixels
from aotkit.aot.tensors import tensor_guard
from aotkit.aot.views import share_viewed_memory

Boxed = Callable[[list[Any]], Sequence[Any]]

# torch 2.11 gives these no last argument; of other kernels' results it is the name of the operator.
_INPUT_ASSERTION = re.compile(r"assert_size_stride\(\w+, \([^()]*\), \([^()]*\)(, 'input')?\)")

RANDOM = {"fallback_random": True}
# Operators that Inductor leaves to libraries, which round their inputs and results.
_STORING = {getattr(torch.ops.aten, name) for name in ("mm", "addmm", "bmm", "baddbmm", "convolution")}


def compile_inner(
    gm: GraphModule, example_inputs: Sequence[Any], settings: dict[str, Any], *, cpp_wrapper: bool = False, **kind: bool
) -> Boxed:
    """Compile one graph.

    Args:
        settings: of `torch._inductor.config`.
        cpp_wrapper: launch kernels from C++, if there is a CUDA device among the inputs.
        kind: `is_backward` or `is_inference`.
    """
    cpp_wrapper = cpp_wrapper and any(isinstance(x, Tensor) and x.is_cuda for x in example_inputs)
    more = {**compile_fx.get_cpp_wrapper_config(), "cpp_wrapper": True} if cpp_wrapper else {}
    if kind.get("is_backward"):
        # Else Inductor pads large gradients, and autograd copies them into the strides that it wants.
        show_results(gm)
    own = {
        "emulate_precision_casts": _rounds_between(gm),
        "allow_buffer_reuse": hands_memory_on(gm, example_inputs),
        "realize_opcount_threshold": realize_opcount_threshold(gm),
    }
    # Inductor's cache of compiled graphs does not tell apart what may be overwritten in one and not in another.
    # Nor does it know of our code.
    tag = f"{torch.compiler.config.cache_key_tag} {_own_code()}, donated {get_donated_idxs()}"
    with (
        config.patch({**RANDOM, **own, **settings, **more}),
        torch.compiler.config.patch(cache_key_tag=tag),  # type: ignore[attr-defined]
        remembered_probes(),
        noting_origins(gm),
        changed_kernels(gm),
    ):
        compiled = compile_fx.compile_fx_inner(gm, example_inputs, cpp_wrapper=cpp_wrapper, **kind)  # type: ignore[arg-type]
    run = launched_graph(compiled) if cpp_wrapper else short_call(compiled, example_inputs)
    run.kernels = lambda inputs: kernels_of(compiled)  # type: ignore[attr-defined]
    run.launches = lambda: len(kernels_of(compiled)) * (CPP_LAUNCH if cpp_wrapper else 1)  # type: ignore[attr-defined]
    run.observed = functools.partial(_observed, compiled)  # type: ignore[attr-defined]
    return run


@functools.cache
def _own_code() -> str:
    """Another one whenever this package is changed."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def hands_memory_on(gm: GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether Inductor may keep the memory of a value that is over for a later one of the same size.

    On a GPU that saves an allocation, 2 to 4 us, in a network whose launches take longer than its kernels. Under a
    small `peak`, Llama's kind held 7 to 10 % too much. On a CPU, where new memory is mapped page by page, it saves
    more.
    """
    return not gm.meta.get("memory_limited") or not any(isinstance(x, Tensor) and x.is_cuda for x in inputs)


def _observed(compiled: Any, inputs: list[Any], around: Any) -> Sequence[Any]:
    """Run the graph, each kernel inside of `around`, unless it was compiled in a way that is not known here."""
    names = [kernel.name for kernel in kernels_of(compiled)]
    run = _rewritten(compiled, functools.partial(with_launches, around=around, names=names))
    return (run or compiled)(inputs)


def _rounds_between(gm: GraphModule) -> bool:
    """Whether a graph converts to a narrower type and back, with nothing in between that stores the narrow values.

    Inductor computes such values in float32 and leaves the conversions out, unless it is told to emulate them.
    """
    narrowed: set[Any] = set()
    for node in gm.graph.nodes:
        sources = [n for n in node.all_input_nodes if _digits(n)]
        if not sources or getattr(node.target, "overloadpacket", None) in _STORING:
            continue
        if any(n in narrowed and _digits(n) < _digits(node) for n in sources):
            return True
        if 0 < _digits(node) < max(map(_digits, sources)) or any(n in narrowed for n in sources):
            narrowed.add(node)
    return False


def _digits(node: Any) -> float:
    """How exact the floating-point type of a node's value, or of the first of several, is; 0 if it has none."""
    values = pytree.tree_leaves(node.meta.get("val"))
    types = [v.dtype for v in values if isinstance(v, Tensor) and v.is_floating_point()]
    return 1 / torch.finfo(types[0]).eps if types else 0.0


def fold_and_fuse(gm: GraphModule, inputs: Any) -> None:
    """Inductor's passes over a whole graph, which it expects to have run: attention patterns, constant folding."""
    fake_mode = next((v.fake_mode for n in gm.graph.nodes if hasattr(v := n.meta.get("val"), "fake_mode")), None)
    with config.patch(RANDOM | NOTING), V.set_fake_mode(fake_mode), hidden_copies(gm), results_apart(gm):
        joint_graph_passes(gm)
    share_padded(gm)
    share_viewed_memory(gm)
    leave_numbers_to_kernels(gm)


def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Inductor's table, with some of our own.

    Without dropout: decomposed, it would draw other numbers than eager.
    """
    with config.patch(RANDOM):
        table = with_right_bytes(with_half_gelu(select_decomp_table()))
        table = with_products_for_single_pixels(with_cropped_windows(table))
    table.pop(torch.ops.aten.native_dropout.default, None)
    return table


def short_call(compiled: Any, example_inputs: Sequence[Any]) -> Boxed:
    """The way to call a `CompiledFxGraph` often.

    The result has an attribute `unchecked`: the same for inputs known to have the types, sizes and strides of
    `example_inputs`. It is absent if the graph has open sizes. The result is `compiled` itself if it was compiled in a
    way that is not known here.
    """
    if all(isinstance(x, Tensor) and all(type(n) is int for n in (*x.shape, *x.stride())) for x in example_inputs):
        rewritten = _rewritten(compiled, functools.partial(_without_input_assertions, owner=compiled))
        return compiled if rewritten is None else _guarded(rewritten, compiled)
    rewritten = _rewritten(compiled, _with_room)  # with its assertions: they tell open sizes, too
    return compiled if rewritten is None else _after_the_first(rewritten, compiled)


def _guarded(rewritten: Boxed, compiled: Any) -> Boxed:
    """Calls the first where the inputs are what they were when the second asserted that they are right."""
    accepts: Callable[..., bool] | None = None

    def call(inputs: list[Any]) -> Sequence[Any]:
        nonlocal accepts
        if accepts is not None and accepts(*inputs):
            return rewritten(inputs)
        guard = tensor_guard(inputs)
        results = compiled(inputs)
        accepts = guard
        return results  # type: ignore[no-any-return]

    call._boxed_call = True  # type: ignore[attr-defined]
    call.unchecked = rewritten  # type: ignore[attr-defined]
    return call


def _after_the_first(rewritten: Boxed, compiled: Any) -> Boxed:
    """Calls the second once, which prepares what it needs, then the first."""
    run: Boxed = compiled

    def call(inputs: list[Any]) -> Sequence[Any]:
        nonlocal run
        results = run(inputs)
        run = rewritten
        return results

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _rewritten(compiled: Any, rewrite: Callable[[MethodType], Boxed]) -> Boxed | None:
    """The same as calling `compiled`, with the method that it calls rewritten; None if that is not known here."""
    runner = getattr(compiled, "compiled_fn_runner", None)
    method = getattr(runner, "call", None)
    if not isinstance(method, MethodType):
        return None
    called, alignment = within_alignment(compiled.current_callable)
    if called != method:
        return None
    return aligned(rewrite(method), **alignment) if alignment else rewrite(method)


def _without_input_assertions(method: MethodType, owner: Any) -> MethodType:
    """The same method of the same object, with its source changed.

    The module that Inductor wrote stays as it is: `torch.compile` may share it, in this process and on disk.

    Args:
        owner: to be kept alive with it.
    """
    code = method.__func__.__code__
    source = "\n" * (code.co_firstlineno - 1) + _INPUT_ASSERTION.sub("pass", _source(method))
    namespace: dict[str, Any] = {}
    exec(compile(source, code.co_filename, "exec"), method.__func__.__globals__, namespace)
    function = namespace[code.co_name]
    function.compiled = owner
    return with_room_for_calls(MethodType(function, method.__self__), source)


def _with_room(method: MethodType) -> MethodType:
    return with_room_for_calls(method, _source(method))


def _source(method: MethodType) -> str:
    code = method.__func__.__code__
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    end = next((i for i, line in enumerate(lines) if i and line.strip() and _indent(line) <= _indent(lines[0])), None)
    return textwrap.dedent("".join(lines[:end]))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
