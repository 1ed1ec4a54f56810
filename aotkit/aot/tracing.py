"""Enter AOTAutograd: from a flat function, or a graph of Dynamo's, to compiled forward and backward graphs.

`aot_module_simplified` compiles at once and takes flat tensors, so it serves our own tracing and Dynamo's.
"""

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.fx.traceback import preserve_node_meta

from aotkit.aot.environment import collecting_later
from aotkit.aot.overlap import correct_overlap
from aotkit.aot.recurrent import correct_recurrent_layers


class CompileLock:
    """Tracing swaps tensors inside the user's objects and patches torch's global configuration: one thread at a time.

    A thread that the holder waits for must not wait for the holder: there it raises.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._thread = threading.local()

    def __enter__(self) -> None:
        if getattr(self._thread, "is_awaited", False):
            raise RuntimeError("A function would have to be compiled in a thread that the check of another waits for.")
        self._lock.acquire()
        self._thread.holds = getattr(self._thread, "holds", 0) + 1

    def __exit__(self, *error: object) -> None:
        self._thread.holds -= 1
        self._lock.release()

    def is_held_here(self) -> bool:
        """Whether this thread is compiling something."""
        return getattr(self._thread, "holds", 0) > 0

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """For a thread that the holder waits for."""
        self._thread.is_awaited = True
        yield


COMPILE_LOCK = CompileLock()

Layout = tuple[list[int], list[int]]  # sizes and strides


@dataclass
class Compiled:
    """What AOTAutograd made of a flat function.

    Attributes:
        call: takes the flat tensors, returns the flat outputs.
        mutated: indices of the inputs that it mutates; all, where AOTAutograd does not tell which.
        leaf_mutated: those that eager mode refuses to mutate when they are leaves that require gradients.
        guard: for `dynamic=True`, whether other tensors satisfy the shape conditions recorded while tracing.
        tangents: for each tangent of the backward graph, the index of the autograd node's output it belongs to.
        own_output: the index of an output that comes from the autograd node as it is; None if there is none.
        metadata: AOTAutograd's own, if it gave any.
        layouts: for `dynamic=True`, other sizes and strides for all inputs; whether `guard` accepts them is to be seen.
    """

    call: Callable[..., Sequence[Any]]
    mutated: Sequence[int]
    leaf_mutated: Sequence[int]
    guard: Callable[[Sequence[Tensor]], bool] | None
    tangents: Sequence[int]
    metadata: Any = None
    layouts: Sequence[Sequence[Layout]] = ()
    own_output: int | None = None


def trace(
    fn: Callable[..., Sequence[Any]],
    tensors: Sequence[Tensor],
    static: Sequence[bool],
    *,
    dynamic: bool,
    **compilers: Any,
) -> Compiled:
    """Trace `fn` over fake copies of `tensors`, partition and compile it.

    Args:
        fn: takes the flat tensors, returns a flat list of tensors.
        static: for each tensor whether its sizes are fixed even when `dynamic`.
        compilers: keywords of `aot_module_simplified`.
    """
    from torch._dynamo.source import LocalSource
    from torch._guards import TracingContext, tracing
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    shape_env = ShapeEnv()
    fake_mode = FakeTensorMode(shape_env=shape_env, static_shapes=not dynamic)
    context = TracingContext(fake_mode)
    # AOTAutograd itself keeps the source lines of nodes only where there is a backward graph.
    with tracing(context), settings(), preserve_node_meta(), warnings.catch_warnings():
        # Fake copies are made of `.grad` too, which warns for tensors that are not leaves.
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor")
        fakes = [
            fake_mode.from_tensor(t, source=LocalSource(f"t{i}"), static_shapes=not dynamic or static[i])
            for i, t in enumerate(tensors)
        ]
        module = _Flat(fn)
        call = _aot(module, fakes, **compilers)
        # The result refers to the module, which must not keep the tensors of the first call alive.
        module.fn = None
    if not dynamic:
        return _compiled(call, context.fw_metadata, None, len(fakes))
    compiled = _compiled(call, context.fw_metadata, _shape_guard(shape_env, fakes), len(fakes))
    return replace(compiled, layouts=_other_layouts(shape_env, fakes))


def compile_captured(gm: GraphModule, example_inputs: Sequence[Any], **compilers: Any) -> Compiled:
    """The same for a graph that Dynamo captured: Dynamo's tracing context, fake tensors and guards are in force."""
    from torch._guards import TracingContext

    with settings():
        call = _aot(gm, example_inputs, **compilers)
    context = TracingContext.try_get()
    return _compiled(call, context.fw_metadata if context else None, None, len(example_inputs))


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

    with collecting_later():
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
    with config.patch(settings), inductor_config.patch(fallback_random=True), correct_recurrent_layers():
        yield


def _compiled(call: Callable[..., Any], metadata: Any, guard: Callable[..., bool] | None, inputs: int) -> Compiled:
    if metadata is None:
        return Compiled(call, (), (), guard, ())
    # Else torch refuses to retain a graph, which `sparing_retained` allows.
    metadata.bw_donated_idxs = []
    mutated, leaves = [], []
    for i, info in enumerate(metadata.input_info):
        if info.mutates_data or info.mutates_metadata:
            mutated.append(i)
            hidden = info.mutations_hidden_from_autograd or info.mutations_under_no_grad_or_inference_mode
            if info.requires_grad and info.mutates_data and not hidden:
                leaves.append(i)
    if mutated and len(metadata.input_info) != inputs:  # it has merged inputs that share memory: other numbers
        mutated, leaves = list(range(inputs)), []
    tangents, own_output = _tangent_outputs(metadata), _own_output(metadata)
    return Compiled(call, mutated, leaves, guard, tangents, metadata, own_output=own_output)


def _tangent_outputs(metadata: Any) -> Sequence[int]:
    """The autograd node returns mutated inputs, outputs and bases of views; only some of them have a tangent."""
    from torch._functorch._aot_autograd.schemas import OutputType

    own = (OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view)
    runtime = metadata.mutated_inp_runtime_indices
    inputs = [
        i for i, j in enumerate(runtime) if metadata.input_info[j].mutates_data and metadata.input_info[j].requires_grad
    ]
    outputs = [
        len(runtime) + i
        for i, info in enumerate(metadata.output_info)
        if info.output_type in own and _is_differentiable(info)
    ]
    first_base = len(runtime) + len(metadata.output_info)
    return [*inputs, *outputs, *range(first_base, first_base + metadata.num_intermediate_bases)]


def _own_output(metadata: Any) -> int | None:
    """Other outputs are inputs or views, and have autograd nodes of their own."""
    from torch._functorch._aot_autograd.schemas import OutputType

    outputs = enumerate(metadata.output_info)
    own = (i for i, info in outputs if info.output_type is OutputType.non_alias and _is_differentiable(info))
    return next(own, None)


def _is_differentiable(info: Any) -> bool:
    is_wanted = getattr(info, "requires_grad_for_backward", info.requires_grad)
    return bool(issubclass(info.raw_type, Tensor) and is_wanted)


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


def is_data_dependent(error: Exception) -> bool:
    """Whether tracing failed because Python code asked for the value of a tensor."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    kinds = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)
    return isinstance(error, kinds)


def is_foreign_tensor(error: Exception) -> bool:
    """Whether tracing failed because a real tensor met a fake one."""
    return "Please convert all Tensors to FakeTensors first" in str(error)
