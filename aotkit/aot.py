"""The only file that imports torch's private names; every difference between torch's versions lives here.

AOTAutograd is entered through `aot_module_simplified`, which compiles at once, takes flat tensors, and serves both
our own tracing and Dynamo's.
"""

import re
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule
from torch.utils import _pytree

from aotkit.errors import TraceError, UnknownNameError, UnsupportedError
from aotkit.interfaces import Graphs

# Nested containers, flat and back.
pytree = _pytree

# Tracing swaps tensors inside the user's objects and patches torch's global configuration: one thread at a time.
COMPILE_LOCK = threading.RLock()


# torch's own default is 8.
MOST_DYNAMO_VARIANTS = 64


# What surrounds a call.


def why_eager() -> str | None:
    """Why a compiled graph must not run now: something outside wants to see every single operation."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "it is called inside a functorch transform (grad, vmap, jvp, ...)"
    if torch._C._len_torch_dispatch_stack() > 0:
        return "a TorchDispatchMode is active"
    for i in range(torch._C._len_torch_function_stack()):
        if not isinstance(mode := torch._C._get_function_stack_at(i), _device_context()):
            return f"the TorchFunctionMode {type(mode).__name__} is active"
    if torch.autograd.forward_ad._current_level >= 0:
        return "it is called inside forward_ad.dual_level()"
    if torch._C._get_tracing_state() is not None:
        return "torch.jit is tracing it"
    if nn.modules.module._has_any_global_hook():  # type: ignore[no-untyped-call]
        return "a global module hook is registered"
    return None


def _device_context() -> type:
    from torch.utils._device import DeviceContext

    return DeviceContext


def environment() -> Hashable:
    """Global switches that decide what a function computes or how it is compiled."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        _autocast() if torch._C._is_any_autocast_enabled() else None,
        torch.get_default_dtype(),
        torch.get_default_device() if torch._C._len_torch_function_stack() else None,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_float32_matmul_precision(),
        torch._C._get_flash_sdp_enabled(),
        torch._C._get_mem_efficient_sdp_enabled(),
        torch._C._get_math_sdp_enabled(),
        torch._C._get_cudnn_enabled(),
        torch._C._get_cudnn_benchmark(),
        torch._C._get_mkldnn_enabled(),
    )


def _autocast() -> Hashable:
    devices = ("cpu", "cuda")
    return tuple((torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices)


def tensor_key(tensor: Tensor) -> Hashable:
    """What a graph assumes of one input: type, dtype, device, layout, gradient, conjugation, sizes and strides."""
    return *_static_key(tensor), tensor.shape, tensor.stride()


def dynamic_key(tensor: Tensor) -> Hashable:
    """`tensor_key` without the sizes that `dynamic=True` leaves open."""
    return *_static_key(tensor), tensor.dim()


def _static_key(tensor: Tensor) -> tuple[Hashable, ...]:
    keys = torch._C._dispatch_keys(tensor).raw_repr()
    return type(tensor), tensor.dtype, tensor.device, tensor.requires_grad, keys


def why_eager_tensor(tensor: Tensor) -> str | None:
    """Why this input cannot enter a compiled graph."""
    if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer):
        return f"an input is a {type(tensor).__name__}, a tensor subclass"
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        return f"an input is quantized, without data or of layout {tensor.layout}: not a plain strided tensor"
    return None


def memory_pattern(tensors: Sequence[Tensor]) -> Hashable:
    """Which inputs are the same tensor or share storage, and where in it; () if none do."""
    first: dict[int, int] = {}
    storages = [first.setdefault(t.untyped_storage()._cdata, i) for i, t in enumerate(tensors)]
    if len(first) == len(tensors):
        return ()
    same: dict[int, int] = {}
    return tuple(
        (i, s, same.setdefault(id(tensors[i]), i), tensors[i].storage_offset())
        for i, s in enumerate(storages)
        if storages.count(s) > 1
    )


@contextmanager
def random_state() -> Iterator[None]:
    """Put all random generators back at the end to where they were at the start."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    with torch.random.fork_rng(devices):
        yield


# Tracing.


@dataclass
class Compiled:
    """What AOTAutograd made of a flat function.

    Attributes:
        call: takes the flat tensors, returns the flat outputs.
        mutated: indices of the inputs that it mutates.
        leaf_mutated: those that eager mode refuses to mutate when they are leaves that require gradients.
        guard: for `dynamic=True`, whether other tensors satisfy the shape conditions recorded while tracing.
        tangents: for each tangent of the backward graph, the index of the autograd node's output it belongs to.
    """

    call: Callable[..., Sequence[Any]]
    mutated: Sequence[int]
    leaf_mutated: Sequence[int]
    guard: Callable[[Sequence[Tensor]], bool] | None
    tangents: Sequence[int]


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
    with tracing(context), _settings(), warnings.catch_warnings():
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
    guard = _shape_guard(shape_env, fakes) if dynamic else None
    return _compiled(call, context.fw_metadata, guard)


def compile_captured(gm: GraphModule, example_inputs: Sequence[Any], **compilers: Any) -> Compiled:
    """The same for a graph that Dynamo captured: Dynamo's tracing context, fake tensors and guards are in force."""
    from torch._guards import TracingContext

    with _settings():
        call = _aot(gm, example_inputs, **compilers)
    context = TracingContext.try_get()
    return _compiled(call, context.fw_metadata if context else None, None)


class _Flat(nn.Module):
    def __init__(self, fn: Callable[..., Sequence[Any]]) -> None:
        super().__init__()
        self.fn: Callable[..., Sequence[Any]] | None = fn

    def forward(self, *tensors: Tensor) -> tuple[Any, ...]:
        assert self.fn is not None
        return tuple(self.fn(*tensors))


def _aot(module: nn.Module, example_inputs: Sequence[Any], **compilers: Any) -> Callable[..., Sequence[Any]]:
    from functorch.compile import aot_module_simplified

    return aot_module_simplified(module, example_inputs, **compilers)  # type: ignore[no-any-return]


@contextmanager
def _settings() -> Iterator[None]:
    from torch._functorch import config

    # Donated buffers forbid retain_graph; eager lowering shows errors of the backward compiler at once.
    with config.patch(donated_buffer=False, force_non_lazy_backward_lowering=True):
        yield


def _compiled(call: Callable[..., Any], metadata: Any, guard: Callable[..., bool] | None) -> Compiled:
    if metadata is None:
        return Compiled(call, (), (), guard, ())
    # torch checks `bw_donated_idxs != []` at run time under a setting that we cannot hold until then.
    metadata.bw_donated_idxs = []
    mutated, leaves = [], []
    for i, info in enumerate(metadata.input_info):
        if info.mutates_data or info.mutates_metadata:
            mutated.append(i)
            hidden = info.mutations_hidden_from_autograd or info.mutations_under_no_grad_or_inference_mode
            if info.requires_grad and info.mutates_data and not hidden:
                leaves.append(i)
    return Compiled(call, mutated, leaves, guard, _tangent_outputs(metadata))


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
        if info.output_type in own
        and issubclass(info.raw_type, Tensor)
        and getattr(info, "requires_grad_for_backward", info.requires_grad)
    ]
    first_base = len(runtime) + len(metadata.output_info)
    return [*inputs, *outputs, *range(first_base, first_base + metadata.num_intermediate_bases)]


def _shape_guard(shape_env: Any, fakes: Sequence[Tensor]) -> Callable[[Sequence[Tensor]], bool]:
    from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP

    source = shape_env.produce_guards_expression(fakes, ignore_static=False)
    code = compile(source or "True", "<aotkit shape guard>", "eval")

    def guard(tensors: Sequence[Tensor]) -> bool:
        return bool(eval(code, SYMPY_INTERP, {"L": {f"t{i}": t for i, t in enumerate(tensors)}}))

    return guard


def is_data_dependent(error: Exception) -> bool:
    """Whether tracing failed because Python code asked for the value of a tensor."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    kinds = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)
    return isinstance(error, kinds)


def is_foreign_tensor(error: Exception) -> bool:
    """Whether tracing failed because a real tensor met a fake one."""
    return "Please convert all Tensors to FakeTensors first" in str(error)


# Graphs.


def outside_fake_mode() -> Any:
    """Compilers run under this, so that they can do real tensor work."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    return unset_fake_temporarily()


def boxed(gm: GraphModule) -> Callable[[list[Any]], Sequence[Any]]:
    """Run the graph as it is, from one list that it empties, so that each input is freed after its last use."""
    gm.graph.set_codegen(torch.fx.graph._BoxedCodeGen())
    gm.recompile()
    run = gm.forward
    call: Callable[[list[Any]], Sequence[Any]] = lambda args: run(args)  # noqa: E731  (methods take no attributes)
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def copy_graph(gm: GraphModule) -> GraphModule:
    """A copy that shares constants and fake tensors with the original."""
    graph = Graph()
    output = graph.output(graph.graph_copy(gm.graph, {}))
    output.meta = dict(gm.graph.output_node().meta)
    return GraphModule(gm, graph)


def is_traced(value: Any) -> bool:
    """Whether a value inside a traced function is one that the graph computes."""
    from torch._subclasses.functional_tensor import FunctionalTensor

    return isinstance(value, FunctionalTensor | torch.SymInt | torch.SymFloat | torch.SymBool)


# Backward.


def refuse_leaf_mutation(tensors: Sequence[Tensor]) -> None:
    """Raise what eager raises when a function mutates one of these in place."""
    for tensor in tensors:
        base = tensor._base if tensor._is_view() else tensor
        if base is not None and base.is_leaf and base.requires_grad:
            kind = "a leaf" if base is tensor else "a view of a leaf"
            raise RuntimeError(f"{kind} Variable that requires grad is being used in an in-place operation.")


def unused_gradients(graphs: Graphs, compiled: Compiled) -> Sequence[frozenset[int]] | None:
    """For each input, the outputs of the autograd node on which its gradient depends.

    None where every gradient depends on every output: then no gradient can turn out to be absent.
    """
    if graphs.joint is None or len(compiled.tangents) < 2:
        return None
    tangents = [n for n in graphs.joint.graph.find_nodes(op="placeholder") if "tangents" in n.name]
    if len(tangents) != len(compiled.tangents):
        return None
    reached: dict[Any, frozenset[int]] = {n: frozenset((i,)) for n, i in zip(tangents, compiled.tangents, strict=True)}
    for node in graphs.joint.graph.nodes:
        if node.op not in ("placeholder", "output"):
            reached[node] = frozenset().union(*(reached.get(n, ()) for n in node.all_input_nodes))
    (output,) = graphs.joint.graph.find_nodes(op="output")
    gradients = pytree.tree_leaves(output.args[0], is_leaf=lambda x: x is None)[graphs.num_outputs :]
    uses = [reached.get(g, frozenset()) for g in gradients]
    everything = frozenset(compiled.tangents)
    return uses if any(u and u != everything for u in uses) else None


def watch_backward(tensors: Sequence[Any], name: str, uses: Sequence[frozenset[int]] | None) -> None:
    """Give the backward of one call the behaviour of eager where AOTAutograd's own differs.

    It refuses `create_graph=True`, whose gradients would have no graph of their own; and an input whose outputs took
    no part in the backward pass gets None, not zeros.

    Args:
        tensors: everything that the call returned or mutated.
        uses: from `unused_gradients`.
    """
    if not torch.is_grad_enabled() or (node := _autograd_node(tensors)) is None:
        return

    def refuse_second_derivative(_: Any) -> None:
        if torch.is_grad_enabled():
            raise UnsupportedError(
                f"{name!r} was differentiated with create_graph=True, but its backward graph cannot be differentiated "
                "again. Where second derivatives are needed, call the uncompiled function, its `__wrapped__`."
            )

    node.register_prehook(refuse_second_derivative)
    if uses is not None:

        def drop_unused(gradients: Sequence[Tensor | None], incoming: Sequence[Tensor | None]) -> Any:
            absent = {i for i, g in enumerate(incoming) if g is None}
            return tuple(None if used and used <= absent else g for g, used in zip(gradients, uses, strict=True))

        node.register_hook(drop_unused)


def _autograd_node(tensors: Sequence[Any]) -> Any:
    """The autograd node of a compiled call, found from its results: views and copies may stand in between."""
    nodes = [t.grad_fn for t in tensors if isinstance(t, Tensor) and t.grad_fn is not None]
    for _ in range(4):
        for node in nodes:
            if node.name() == "CompiledFunctionBackward":
                return node
        nodes = [following for node in nodes for following, _ in node.next_functions if following is not None]
    return None


# Dynamo.


def dynamo_backend(name: str) -> Callable[..., Any]:
    """A graph compiler that hands each graph to the backend that torch._dynamo knows under `name`."""
    import torch._dynamo as dynamo
    from torch._dynamo.exc import InvalidBackend
    from torch._guards import tracing

    try:
        compiler = dynamo.lookup_backend(name)
    except InvalidBackend:
        known = ", ".join(dynamo.list_backends(exclude_tags=()))
        raise UnknownNameError(f"torch._dynamo has no backend named {name!r}. It has: {known}.") from None

    def compile_graph(gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
        with tracing(None), torch.no_grad():
            run = compiler(gm, list(example_inputs))
        # Whatever attributes say, a Dynamo backend's result takes its inputs one by one.
        return lambda *inputs: run(*inputs)

    compile_graph.__name__ = f"dynamo:{name}"
    return compile_graph


def dynamo_compile(fn: Callable[..., Any], backend: Callable[..., Any], dynamic: bool) -> Callable[..., Any]:
    """`torch.compile` with a backend of ours, and an error where Dynamo would silently give up and run eagerly."""
    from torch._dynamo import config
    from torch._dynamo.exc import FailOnRecompileLimitHit

    def captured(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    # Dynamo counts compilations by code object; this one must not share its count with others made here.
    captured.__code__ = captured.__code__.replace()
    compiled = torch.compile(captured, backend=backend, dynamic=dynamic)

    def call(*args: Any, **kwargs: Any) -> Any:
        with config.patch(fail_on_recompile_limit_hit=True, recompile_limit=MOST_DYNAMO_VARIANTS):
            try:
                return compiled(*args, **kwargs)
            except FailOnRecompileLimitHit as e:
                raise TraceError(
                    f"Dynamo compiled {fn!r} {MOST_DYNAMO_VARIANTS} times, for different arguments each time, and gave "
                    "up. Pass what changes as tensors, or compile a part of it that is called with fewer variants."
                ) from e

    return call


def captured_names(gm: GraphModule) -> list[str]:
    """What the user calls the inputs of a graph that Dynamo captured: `layer.weight`, `args[0]`."""
    return [_captured_name(node) for node in gm.graph.find_nodes(op="placeholder")]


def _captured_name(node: Any) -> str:
    source = getattr(node.meta.get("grapharg"), "source", None)
    name = getattr(source, "name", node.name)
    path = str(name() if callable(name) else name)
    path = re.sub(r"\._(?:modules|parameters|buffers)\['([^']*)'\]", r".\1", path)
    path = path.removeprefix("L['fn'].__self__.")
    return re.sub(r"^L\['kwargs'\]\['(\w+)'\]|^L\['(\w+)'\]", lambda m: m[1] or m[2], path)


# TorchScript.


def nnc_fuses_on_cpu() -> bool:
    """Whether this PyTorch was built with the LLVM that NNC generates CPU code with."""
    return bool(torch._C._llvm_enabled())


@contextmanager
def nnc_fuser() -> Iterator[None]:
    """TorchScript code that is compiled meanwhile is fused by NNC.

    `torch.jit.fuser("fuser1")` says the same, and warns about NVFuser, which it also sets.
    """
    switches = [
        (torch._C._jit_set_profiling_executor, torch._C._jit_set_profiling_executor(True)),
        (torch._C._get_graph_executor_optimize, torch._C._get_graph_executor_optimize(True)),
        (torch._C._jit_set_texpr_fuser_enabled, torch._C._jit_texpr_fuser_enabled()),
        (torch._C._jit_override_can_fuse_on_gpu, torch._C._jit_can_fuse_on_gpu()),
        (torch._C._jit_override_can_fuse_on_cpu, torch._C._jit_can_fuse_on_cpu()),
    ]
    torch._C._jit_set_texpr_fuser_enabled(True)
    torch._C._jit_override_can_fuse_on_gpu(True)
    torch._C._jit_override_can_fuse_on_cpu(nnc_fuses_on_cpu())
    try:
        yield
    finally:
        for switch, before in switches:
            switch(before)
