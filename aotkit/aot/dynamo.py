"""TorchDynamo's capture, and the backends that it knows."""

import functools
import itertools
import operator
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.experimental.symbolic_shapes import PropagateUnbackedSymInts
from torch.utils.checkpoint import checkpoint

from aotkit.aot.environment import EagersDropout
from aotkit.aot.graphs import copy_graph
from aotkit.aot.in_place_results import correct_in_place_results
from aotkit.aot.new_storages import assign_data
from aotkit.aot.shared_random import SharedRandom
from aotkit.aot.tensors import overrides_operators
from aotkit.errors import AotkitError, TraceError, UnknownNameError
from aotkit.random import Draws
from aotkit.text import is_installed

# torch's own default is 8.
MOST_DYNAMO_VARIANTS = 64
NO_PLAIN_RESULT = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
LIMIT_HIT = "Dynamo recompile limit exceeded"
_numbers = itertools.count()


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


def dynamo_compile(
    fn: Callable[..., Any], backend: Callable[..., Any], dynamic: bool | None, strict: bool
) -> Callable[..., Any]:
    """`torch.compile` with a backend of ours, whose errors come as they are.

    Args:
        strict: raise TraceError where Dynamo gives up after many variants, and would run eagerly.
    """
    from torch._dynamo import config
    from torch._dynamo.exc import BackendCompilerFailed, FailOnRecompileLimitHit

    correct_in_place_results()
    compiled, parts = _compiled_by_dynamo(fn, backend, dynamic)
    # `config.patch` would leave some memory behind in each call.
    limit: Any = config._make_closure_patcher(fail_on_recompile_limit_hit=strict, recompile_limit=MOST_DYNAMO_VARIANTS)

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal compiled, parts
        if parts and any(map(operator.is_not, parts, _parts(fn))):  # a notebook has loaded it anew
            compiled, parts = _compiled_by_dynamo(fn, backend, dynamic)
        restore = limit()
        try:
            return compiled(*args, **kwargs)
        except BackendCompilerFailed as e:
            if isinstance(e.inner_exception, AotkitError):
                raise e.inner_exception from e.inner_exception.__cause__
            raise
        except FailOnRecompileLimitHit as e:
            raise TraceError(
                f"Dynamo compiled {fn!r} {MOST_DYNAMO_VARIANTS} times, for different arguments each time, and gave "
                "up. Pass what changes as tensors, or compile a part of it that is called with fewer variants."
            ) from e
        finally:
            restore()

    return call


def _compiled_by_dynamo(
    fn: Callable[..., Any], backend: Callable[..., Any], dynamic: bool | None
) -> tuple[Callable[..., Any], Sequence[Any]]:
    """`torch.compile` of a function, with code of its own.

    Dynamo counts compilations by code object. Which sizes have changed between calls it remembers by the name of code,
    torch 2.11 by that alone. So no two share either.

    Returns:
        (that, what of the function it is a copy of): nothing if it calls the function, whose own frame Dynamo then
        captures once more, from its start, if the graph ends in it.
    """
    function = fn.__func__ if isinstance(fn, MethodType) else fn
    number = next(_numbers)
    if not _is_plain(function):

        def captured(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        captured.__code__ = captured.__code__.replace(co_name=f"captured_{number}")
        return torch.compile(captured, backend=backend, dynamic=dynamic), ()
    code, defaults, keyword_defaults = parts = _parts(function)
    name = f"{code.co_name}_{number}"
    copied = FunctionType(code.replace(co_name=name), function.__globals__, name, defaults, function.__closure__)
    copied.__kwdefaults__ = keyword_defaults
    compiled = torch.compile(copied, backend=backend, dynamic=dynamic)
    return functools.partial(compiled, fn.__self__) if isinstance(fn, MethodType) else compiled, parts


def _parts(fn: Any) -> tuple[Any, Any, Any]:
    return fn.__code__, fn.__defaults__, fn.__kwdefaults__


def _is_plain(function: Any) -> bool:
    """Whether Dynamo captures the frame of a function as that of any other."""
    from torch._dynamo.trace_rules import check, lookup
    from torch._dynamo.variables import UserFunctionVariable

    if type(function) is not FunctionType or function.__code__.co_flags & NO_PLAIN_RESULT:
        return False
    is_marked = any(name.startswith("_torchdynamo") for name in vars(function))
    return not is_marked and not check(function) and lookup(function) is UserFunctionVariable


def is_dynamos_own(error: Exception) -> bool:
    """Whether Dynamo itself catches this, or tells it in its own way."""
    from torch._dynamo.exc import TorchDynamoException

    return isinstance(error, TorchDynamoException) or ends_graph(error)


def ends_graph(error: Exception) -> bool:
    """Whether Dynamo answers this by a smaller graph, or by leaving a frame as it is."""
    from torch._dynamo.exc import exceptions_allowed_to_be_fallback

    return isinstance(error, exceptions_allowed_to_be_fallback)


def end_graph_of_foreign(gm: GraphModule, inputs: Sequence[Any]) -> None:
    """Have Dynamo leave in Python what a graph cannot do as eager does it, or the check not compare.

    Where an input overrides operators, the graph has in it what they do there, but runs on the input itself, to which
    they do it once more; and the results have lost their type.
    """
    from torch._subclasses.fake_tensor import FakeTensor, UnsupportedFakeTensorException

    for tensor in inputs:
        if isinstance(tensor, Tensor) and not isinstance(tensor, FakeTensor) and overrides_operators(tensor):
            raise UnsupportedFakeTensorException(f"an input is a {type(tensor).__name__}, which overrides operators")
    if any(isinstance(x, Tensor) and x.is_nested for x in (*inputs, *captured_results(gm))):
        raise UnsupportedFakeTensorException("it takes or makes a nested tensor, which could not be checked")
    given = {id(node.meta.get("example_value")) for node in gm.graph.find_nodes(op="placeholder")}
    for method in ("__delattr__", "requires_grad_"):
        for node in gm.graph.find_nodes(op="call_method", target=method):
            if id(node.args[0].meta.get("example_value")) in given:
                raise UnsupportedFakeTensorException(f"it calls {method!r} of an input, which a graph does not repeat")


def graph_breaks() -> dict[str, int]:
    """How often Dynamo has ended a graph early so far, by the reasons that it gives."""
    from torch._dynamo.utils import counters

    return dict(counters["graph_break"])


def limits_hit() -> int:
    """How often Dynamo has given up on a function, or on a part of one, after many variants."""
    from torch._dynamo.utils import counters

    return sum(count for what, count in counters["unimplemented"].items() if what.startswith(LIMIT_HIT))


def graph_break_of(gm: GraphModule) -> str | None:
    """Why Dynamo ended this graph before the function's end, and where; None if it did not."""
    reason = getattr(gm, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break:
        return None
    frame = next((f for f in reversed(reason.user_stack) if not is_installed(f.filename)), None)
    frame = frame or (reason.user_stack[-1] if reason.user_stack else None)
    where = f" at {frame.filename}:{frame.lineno}" if frame else ""
    return f"{in_short(reason.reason)}{where}"


def in_short(reason: str) -> str:
    """A reason of Dynamo's without its advice."""
    return reason.strip().partition("\n")[0]


def graph_to_trace(gm: GraphModule, *, shared: bool, seeded: bool) -> GraphModule:
    """A copy of a graph that Dynamo captured, in which dropout returns what it does in eager.

    AOTAutograd learns from it what Dynamo knows of its inputs: without that it makes no guards for inputs that share
    memory.

    Args:
        shared: whether it draws shared random numbers.
        seeded: whether it draws them from a seed that is its last input; without one, drawing raises SeedNeeded.
    """
    outer = copy_graph(gm)
    outer.meta.update(gm.meta)
    if hasattr(gm, "_param_name_to_source"):
        outer._param_name_to_source = gm._param_name_to_source
    inner, graph = outer.graph, Graph()
    inputs = []
    for node in gm.graph.find_nodes(op="placeholder"):
        inputs.append(graph.placeholder(node.target))
        inputs[-1].meta = dict(node.meta)
        if hasattr(node, "_dynamo_source"):
            inputs[-1]._dynamo_source = node._dynamo_source
    seed = graph.placeholder("seed") if seeded else None
    if seed is not None:
        seed._dynamo_source = None

    def run(seed: Tensor | None, *inputs: Any) -> Any:
        has_values = get_proxy_mode() is not None
        with SharedRandom(Draws(seed, has_values=has_values)) if shared else nullcontext(), EagersDropout():
            return PropagateUnbackedSymInts(outer, graph=inner).run(*inputs)

    graph.output(graph.call_function(run, (seed, *inputs)))
    outer.graph = graph
    return outer


def uncompiled_graph(gm: GraphModule) -> GraphModule:
    """A copy of a graph that Dynamo captured, for running it as the function does.

    Dynamo's own checkpoint operator leaves it to the compiler to draw the same random numbers again.
    """
    gm = copy_graph(gm)
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.higher_order.tag_activation_checkpoint):
        node.target = _checkpoint
    assign_data(gm)
    gm.recompile()
    return gm


def _checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return checkpoint(function, *args, **{**kwargs, "use_reentrant": False})


def captured_names(gm: GraphModule) -> list[str]:
    """What the user calls the inputs of a graph that Dynamo captured: `layer.weight`, `args[0]`."""
    return [_captured_name(node) for node in gm.graph.find_nodes(op="placeholder")]


def fixed_scalars(gm: GraphModule) -> frozenset[int]:
    """Which inputs of a graph that Dynamo captured are made of Python numbers whose values its guards fix.

    Dynamo does that where a number that the graph makes of such numbers alone is one of its results.
    """
    places = {node: i for i, node in enumerate(gm.graph.find_nodes(op="placeholder"))}
    # For what is made of numbers alone, which ones.
    numbers: dict[Node, frozenset[int]] = {}
    for node in gm.graph.nodes:
        if node in places:
            argument = node.meta.get("grapharg")
            if argument is not None and not argument.is_tensor:
                numbers[node] = frozenset({places[node]})
        elif node.all_input_nodes and all(n in numbers for n in node.all_input_nodes):
            numbers[node] = frozenset().union(*(numbers[n] for n in node.all_input_nodes))
    results: Any = gm.graph.output_node().args[0]
    return frozenset().union(*(numbers.get(r, ()) for r in results if isinstance(r, Node)))


def captured_results(gm: GraphModule) -> list[Any]:
    """The fake results of a graph that Dynamo captured; None for what it does not know, and for constants."""
    results: Any = gm.graph.output_node().args[0]
    return [node.meta.get("example_value") if isinstance(node, Node) else None for node in results]


def _captured_name(node: Any) -> str:
    source = getattr(node.meta.get("grapharg"), "source", None)
    name = getattr(source, "name", node.name)
    path = str(name() if callable(name) else name)
    path = re.sub(r"\._(?:modules|parameters|buffers)\['([^']*)'\]", r".\1", path)
    path = path.removeprefix("L['fn'].__self__.").removeprefix("L['self'].")
    return re.sub(r"^L\['kwargs'\]\['(\w+)'\]|^L\['(\w+)'\]", lambda m: m[1] or m[2], path)
