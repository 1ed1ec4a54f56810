"""Enter AOTAutograd: from a flat function, or a graph of Dynamo's, to compiled forward and backward graphs.

`aot_module_simplified` compiles at once and takes flat tensors, so it serves our own tracing and Dynamo's.
"""

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.fx.traceback import preserve_node_meta

from aotkit.torch_private.aotautograd_metadata import Compiled, Layout, compiled_function, function_metadata
from aotkit.torch_private.autograd import marking_checkpoints
from aotkit.torch_private.dispatch import correct_recurrent_layers
from aotkit.torch_private.fake_tensors import outside_fake_mode, propagate
from aotkit.torch_private.tensors import is_view

WRAPS = "aotkit_wraps"  # in the metadata of a graph: whether its inputs or results are subclasses around other tensors


def trace(
    fn: Callable[..., Sequence[Any]],
    tensors: Sequence[Tensor],
    open_sizes: Sequence[Sequence[bool]] = (),
    **compilers: Any,
) -> Compiled:
    """Trace `fn` over fake copies of `tensors`, partition and compile it.

    Args:
        fn: takes the flat tensors, returns a flat list of tensors.
        open_sizes: for each tensor, and each of its dimensions, whether that size is left open; none is by default.
        compilers: keywords of `aot_module_simplified`.
    """
    from torch._dynamo.source import LocalSource
    from torch._guards import TracingContext, tracing
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    dynamic = any(map(any, open_sizes))
    shape_env = ShapeEnv()
    fake_mode = FakeTensorMode(shape_env=shape_env, static_shapes=not dynamic)
    context = TracingContext(fake_mode)
    # AOTAutograd itself keeps the source lines of nodes only where there is a backward graph.
    with tracing(context), settings(), preserve_node_meta(), warnings.catch_warnings():
        # Fake copies are made of `.grad` too, which warns for tensors that are not leaves.
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor")
        fakes = [
            fake_mode.from_tensor(t, source=LocalSource(f"t{i}"), **_which_open(t, open_sizes[i] if dynamic else ()))
            for i, t in enumerate(tensors)
        ]
        module = _Flat(fn)
        call = _aot(module, fakes, **compilers)
        # The result refers to the module, which must not keep the tensors of the first call alive.
        module.fn = None
    if not dynamic:
        return compiled_function(call, context.fw_metadata, None, len(fakes))
    compiled = compiled_function(call, context.fw_metadata, _shape_guard(shape_env, fakes), len(fakes))
    return replace(compiled, layouts=_other_layouts(shape_env, fakes))


def _which_open(tensor: Tensor, dims: Sequence[bool]) -> dict[str, Any]:
    """Keywords of `from_tensor`, by which it leaves these sizes open."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    if len({*dims}) < 2 or is_view(tensor):  # which has sizes of what it is a view of, too
        return {"static_shapes": not any(dims)}
    kinds = [DimDynamic.DUCK if is_open else DimDynamic.STATIC for is_open in dims]
    return {"symbolic_context": StatelessSymbolicContext(dynamic_sizes=kinds)}


def compile_captured(gm: GraphModule, example_inputs: Sequence[Any], **compilers: Any) -> Compiled:
    """The same for a graph that Dynamo captured: Dynamo's tracing context, fake tensors and guards are in force."""
    with settings():
        call = _aot(gm, example_inputs, **compilers)
    compiled = compiled_function(call, function_metadata(), None, len(example_inputs))
    return replace(compiled, wraps=gm.meta.get(WRAPS, False))


@contextmanager
def as_captured(fake_mode: Any) -> Iterator[None]:
    """For fake tensors of this mode, `compile_captured` may run under this when Dynamo is done, or where it was not."""
    from torch._guards import TracingContext, tracing

    # As while Dynamo compiles: else torch 2.13 takes calls of what it has compiled, in other threads, for parts of what
    # is traced, and refuses them. So does torch 2.11 in either case, and 2.15 in none.
    session: Any = getattr(torch.compiler, "_compile_session_context", nullcontext)
    with session(), tracing(TracingContext(fake_mode)):
        yield


class _Flat(nn.Module):
    def __init__(self, fn: Callable[..., Sequence[Any]]) -> None:
        super().__init__()
        self.fn: Callable[..., Sequence[Any]] | None = fn

    def forward(self, *tensors: Tensor) -> tuple[Any, ...]:
        assert self.fn is not None
        # Asked whether gradients are wanted, torch's decomposition of an LSTM looks at the input but not at the
        # weights, and then takes oneDNN's kernel for inference, whose workspace is missing in the backward pass.
        onednn = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(onednn and not torch.is_grad_enabled())
        try:
            return tuple(self.fn(*tensors))
        finally:
            torch._C._set_mkldnn_enabled(onednn)


def _aot(module: nn.Module, example_inputs: Sequence[Any], **compilers: Any) -> Callable[..., Sequence[Any]]:
    from functorch.compile import aot_module_simplified

    return aot_module_simplified(module, example_inputs, **compilers)  # type: ignore[no-any-return]


@contextmanager
def settings() -> Iterator[None]:
    from torch._functorch import config
    from torch._inductor import config as inductor_config

    settings = {
        "donated_buffer": True,
        "force_non_lazy_backward_lowering": True,  # errors of the backward compiler shall show at once
        "unlift_effect_tokens": True,  # an input and output for each effect would confuse Inductor's strides
    }
    # While a tracing context is active, this tells torch to keep random operators whose results nobody uses: they move
    # the generator on, so without them all later draws of the program would be others than in eager.
    correct_overlap()
    options = config.patch(settings), inductor_config.patch(fallback_random=True)
    with options[0], options[1], correct_recurrent_layers(), marking_checkpoints(), warnings.catch_warnings():
        # Tracing the backward pass failed, which is an error of its own, or another way's turn.
        warnings.filterwarnings("ignore", "Error detected in ")
        yield


def _compilers() -> dict[str, Any]:
    from torch._functorch import config
    from torch._inductor import config as inductor_config

    return {"functorch": config, "inductor": inductor_config}


def settings_now() -> dict[str, dict[str, Any]]:
    """The values of all settings of torch's compilers, by compiler and name, for another process to have the same."""
    return {name: dict(module.save_config_portable()) for name, module in _compilers().items()}


@contextmanager
def with_settings(settings: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Have these, of `settings_now`, for a while."""
    with ExitStack() as stack:
        for name, module in _compilers().items():
            stack.enter_context(module.patch(dict(settings[name])))
        yield


def _shape_guard(shape_env: Any, fakes: Sequence[Tensor]) -> Callable[[Sequence[Tensor]], bool]:
    from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP

    source = shape_env.produce_guards_expression(fakes, ignore_static=False)
    code = compile(source or "True", "<aotkit shape guard>", "eval")

    def guard(tensors: Sequence[Tensor]) -> bool:
        return bool(eval(code, SYMPY_INTERP, {"L": {f"t{i}": t for i, t in enumerate(tensors)}}))

    return guard


def _other_layouts(shape_env: Any, fakes: Sequence[Tensor]) -> Sequence[Sequence[Layout]]:
    """What sizes and strides become when each open size grows by one, or doubles."""
    open_sizes = [n.node for fake in fakes for n in (*fake.shape, *fake.stride()) if isinstance(n, torch.SymInt)]
    sizes = {node.expr: int(node.hint) for node in open_sizes if node.expr.is_Symbol}
    if not sizes:
        return ()

    def grown(number: Any, sizes: dict[Any, int]) -> int:
        return int(shape_env.simplify(number.node.expr).xreplace(sizes)) if isinstance(number, torch.SymInt) else number

    others = [{symbol: n + 1 for symbol, n in sizes.items()}, {symbol: 2 * n for symbol, n in sizes.items()}]
    return [[([grown(n, o) for n in f.shape], [grown(n, o) for n in f.stride()]) for f in fakes] for o in others]


def compile_alone(compiler: Callable[..., Any], gm: GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """Hand `gm` to a compiler as AOTAutograd would: each node with a fake tensor, and a tracing context in force.

    Args:
        inputs: real tensors like those that the graph is to run on.
    """
    from torch._guards import TracingContext, tracing

    fake_mode, fakes = propagate(gm, inputs)
    with tracing(TracingContext(fake_mode)), settings(), outside_fake_mode():
        return compiler(gm, fakes)  # type: ignore[no-any-return]


def part_of_graph() -> AbstractContextManager[Any]:
    """Parts of a graph are compiled under this: what compilers read and report of the whole graph is not theirs."""
    from torch._guards import TracingContext, tracing

    context = TracingContext.try_get()
    return tracing(TracingContext(context.fake_mode)) if context is not None else nullcontext()


@contextmanager
def partitioning(joint_inputs: Any) -> Iterator[None]:
    """A partitioner runs under this as AOTAutograd runs one.

    Args:
        joint_inputs: fake tensors.
    """
    from torch._guards import TracingContext, detect_fake_mode, tracing

    fake_mode = detect_fake_mode(joint_inputs)
    assert fake_mode is not None
    with tracing(TracingContext(fake_mode)), settings(), fake_mode, torch.no_grad():
        yield


def memory_budget(fraction: float) -> AbstractContextManager[Any]:
    """torch's min-cut saves at most about this fraction of the bytes that it saves by default."""
    from torch._functorch import config

    return config.patch(activation_memory_budget=fraction)  # type: ignore[no-any-return]


@functools.cache
def correct_overlap() -> None:
    """Make torch find all inputs that overlap: a mutation of one would not be seen in the others.

    For good, not while a function is traced: torch 2.11 asks in each call, too, and by then has to agree.
    """
    from torch._functorch._aot_autograd import input_output_analysis

    analysis: Any = input_output_analysis
    overlapping = analysis.compute_overlapping_tensors

    def corrected(tensors: Sequence[Tensor], symbolic: bool) -> set[int]:
        found = set(overlapping(tensors, symbolic=symbolic))
        for (i, a), (j, b) in itertools.combinations(enumerate(tensors), 2):
            if _rows_overlap(a, b):
                found |= {i, j}
        return found

    analysis.compute_overlapping_tensors = corrected


def _rows_overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two matrices with equal, longer strides from row to row share elements.

    torch (2.11 to 2.15) asks whether the rows of the second fit between those of the first, but not whether they begin
    behind these: `x[:-1, :2]` and `x[1:, :2]` would not overlap.
    """
    if a.dim() != 2 or b.dim() != 2 or a.stride() != b.stride() or a.stride(1) != 1 or not a.numel() or not b.numel():
        return False
    first, second = sorted((a, b), key=lambda t: t.storage_offset())
    row, distance = first.stride(0), second.storage_offset() - first.storage_offset()
    if row == 0 or distance >= row * (first.shape[0] - 1) + first.shape[1]:
        return False
    behind = distance % row
    return bool(behind < first.shape[1] or behind + second.shape[1] > row)


def traced_code() -> list[CodeType]:
    """The code that Dynamo has run through for the graph that it hands to a backend now."""
    from torch._guards import TracingContext

    return list(TracingContext.get_traced_code() or ())
