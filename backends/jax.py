"""JAX: its compiler XLA, on the CPU and on CUDA devices.

It gets the regions of a graph that it takes, written with `jax.numpy`: `foreign/jax_operators.py` is the table.
Programs that use JAX keep their settings: what ours need is set while a graph is compiled.
"""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.node import map_arg
from torch.utils import dlpack

from aotkit.backends.foreign import Execute, foreign_backend
from aotkit.backends.foreign.jax_operators import dtypes, table
from aotkit.interfaces import always_available
from aotkit.passes import results_of


def build(gm: GraphModule) -> Callable[[], Execute]:
    """A program for the device of the graph's tensors. It may run in several threads at the same time."""
    import jax
    from jax.sharding import SingleDeviceSharding

    inputs = [n.meta["val"] for n in gm.graph.find_nodes(op="placeholder")]
    device = _device(inputs[0].device)
    where = SingleDeviceSharding(device)
    with jax.enable_x64(True):
        kinds = [jax.ShapeDtypeStruct(x.shape, dtypes()[x.dtype], sharding=where) for x in inputs]
        program = jax.jit(functools.partial(_evaluate, gm)).lower(*kinds).compile()
    execute = _on_cuda if inputs[0].is_cuda else _on_cpu
    return lambda: functools.partial(execute, program, device)


def _evaluate(gm: GraphModule, *inputs: Any) -> Sequence[Any]:
    """The graph on arrays of JAX: what it traces."""
    known = dict(zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True))
    for node in gm.graph.nodes:
        if node.op == "call_function":
            args, kwargs = map_arg((node.args, node.kwargs), known.__getitem__)
            known[node] = table()[node.target](*args, **kwargs).astype(dtypes()[node.meta["val"].dtype])
    return [known[node] for node in results_of(gm)]


def _on_cpu(program: Any, device: Any, inputs: list[Tensor]) -> Sequence[Tensor]:
    """One call. It returns when all is computed: until then, nobody may write to the inputs."""
    import jax

    arrays = [_imported(x, device) for x in inputs]
    return [*map(dlpack.from_dlpack, jax.block_until_ready(program(*arrays)))]


def _imported(x: Tensor, device: Any) -> Any:
    """A tensor as an array in the same memory."""
    import jax
    from jax._src.lib import xla_client

    # The public function takes 80 us, this 5; that one also makes int32 of int64, where the program has not set x64.
    fast = getattr(getattr(xla_client, "_xla", None), "dlpack_managed_tensor_to_buffer", None)
    if fast is not None:
        return fast(dlpack.to_dlpack(x), device, None)  # type: ignore[attr-defined]
    with jax.enable_x64(True):
        return jax.dlpack.from_dlpack(x)


def _on_cuda(program: Any, device: Any, inputs: list[Tensor]) -> Sequence[Tensor]:
    """One call, in order with torch's current stream: by dlpack, JAX's waits for that, and that for the results.

    JAX uses memory again as soon as nobody holds it, on its own stream. So that waits for all of torch's on which
    there were results: what was read there has been read then.
    """
    import jax

    stream = torch.cuda.current_stream(inputs[0].device)
    for other in _STREAMS - {stream}:
        stream.wait_stream(other)
    _STREAMS.add(stream)
    with jax.enable_x64(True), torch.cuda.device(inputs[0].device):
        arrays = [jax.dlpack.from_dlpack(x) for x in inputs]
        return [*map(dlpack.from_dlpack, program(*arrays))]


_STREAMS: set[torch.cuda.Stream] = set()


def _device(device: torch.device) -> Any:
    """JAX's name of a device."""
    jax = _jax()
    if device.type == "cpu":
        return jax.local_devices(backend="cpu")[0]
    return next(d for d in jax.local_devices(backend="cuda") if d.local_hardware_id == device.index)


@functools.cache
def _jax() -> Any:
    """JAX, which takes no memory of a GPU before it needs it: three quarters, otherwise."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    return jax


@functools.cache
def _without_cuda() -> str | None:
    """Why JAX cannot use a CUDA device."""
    try:
        _jax().local_devices(backend="cuda")
    except RuntimeError as e:
        return f"JAX has no CUDA device here: {e}. Get it by `pip install 'jax[cuda13]'`."
    return None


backend = foreign_backend(
    "JAX", build, packages={"jax": "jax"}, devices={"cpu": always_available, "cuda": _without_cuda}
)
