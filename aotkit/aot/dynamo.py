"""TorchDynamo's capture, and the backends that it knows."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils.checkpoint import checkpoint

from aotkit.aot.graphs import copy_graph
from aotkit.errors import AotkitError, TraceError, UnknownNameError

# torch's own default is 8.
MOST_DYNAMO_VARIANTS = 64


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
    from torch._dynamo.exc import BackendCompilerFailed, FailOnRecompileLimitHit

    def captured(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    # Dynamo counts compilations by code object; this one must not share its count with others made here.
    captured.__code__ = captured.__code__.replace()
    compiled = torch.compile(captured, backend=backend, dynamic=dynamic)
    # `config.patch` would leave some memory behind in each call.
    limit: Any = config._make_closure_patcher(fail_on_recompile_limit_hit=True, recompile_limit=MOST_DYNAMO_VARIANTS)

    def call(*args: Any, **kwargs: Any) -> Any:
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


def uncompiled_graph(gm: GraphModule) -> GraphModule:
    """A copy of a graph that Dynamo captured, for running it as it is.

    Dynamo's own checkpoint operator leaves it to the compiler to draw the same random numbers again.
    """
    gm = copy_graph(gm)
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.higher_order.tag_activation_checkpoint):
        node.target = _checkpoint
    gm.recompile()
    return gm


def _checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return checkpoint(function, *args, **{**kwargs, "use_reentrant": False})


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
