"""The public functions around `compile`: extracting graphs, checking once, fusing, and backends for torch.compile."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from aotkit.comparison import CheckReport
from aotkit.compiled_function import Capture
from aotkit.compiler import compile
from aotkit.dynamo import CapturedCompiler
from aotkit.errors import UnavailableError
from aotkit.interfaces import Graphs, Partitioner
from aotkit.modules import function_of
from aotkit.recipe import Randomness, recipe_of
from aotkit.registry import AnyBackend, backend_status

if TYPE_CHECKING:
    from aotkit.benchmark import BenchReport
    from aotkit.benchmark.frontier_report import Frontier

F = TypeVar("F", bound=Callable[..., Any])

# Backends that fuse, best first. Source: our measurements on CPU and on an H200.
FUSING = ("nvfuser", "inductor", "nnc")


def extract(
    fn: Callable[..., Any],
    /,
    *args: Any,
    backend: str | AnyBackend = "nop",
    partition: str | Partitioner = "default",
    **kwargs: Any,
) -> Graphs:
    """The joint, forward and backward graphs of `fn(*args, **kwargs)`.

    `backend` matters only for its decompositions and its joint pass, which shape the graphs.
    """
    compiled: Any = compile(fn, backend=backend, partition=partition, check=False)
    return function_of(compiled).graphs(*args, **kwargs)


def check(
    fn: Callable[..., Any],
    /,
    *args: Any,
    backend: str | AnyBackend = "auto",
    partition: str | Partitioner = "auto",
    capture: Capture = "aot",
    random: Randomness = "shared",
    **kwargs: Any,
) -> CheckReport:
    """Compile `fn` for these inputs and compare outputs, gradients and mutated inputs with eager's.

    Raises:
        MismatchError: they differ; its `report` says where.
    """
    compiled: Any = compile(fn, backend=backend, partition=partition, capture=capture, random=random)
    return function_of(compiled).report(*args, **kwargs)


def bench(fn: Callable[..., Any], /, *args: Any, **options: Any) -> "BenchReport":
    """Time forward and backward of `fn(*args)` in eager and under backends and partitioners, interleaved and checked.

    `options` are keyword arguments of `fn`, and those of `aotkit.benchmark.bench`: `backends`, `partitions`,
    `seconds`, `capture` and `progress`.
    """
    from aotkit.benchmark import bench

    return bench(fn, *args, **options)


def frontier(fn: Callable[..., Any], /, *args: Any, **options: Any) -> "Frontier":
    """Memory against time for `fn(*args)`: every partitioner and budget on one joint graph, judged without running it.

    `options` are keyword arguments of `fn`, and those of `aotkit.benchmark.frontier.frontier`: `backend`, `device`,
    `capture`, `random` and `progress`. Show the result as a table, or draw it with `.plot()`.
    """
    from aotkit.benchmark.frontier import frontier

    return frontier(fn, *args, **options)


def memory_efficient_fusion(fn: F, /, **options: Any) -> F:
    """Compile for training with fused kernels and few saved values.

    It uses the best fusing backend that runs here with the `min_cut` partitioner, which recomputes cheap operations
    in the backward pass instead of saving their results. `options` are those of `compile`.

    Raises:
        UnavailableError: no backend that fuses runs on this machine.
    """
    status = backend_status()
    usable = [name for name in FUSING if name in status and status[name] is None]
    if not usable:
        reasons = " ".join(filter(None, (status.get(name) for name in FUSING)))
        raise UnavailableError(f"no backend that fuses runs here: {reasons}")
    compiled: Any = compile(fn, **{"backend": usable[0], "partition": "min_cut", **options})
    return compiled  # type: ignore[no-any-return]


def torch_backend(
    backend: str | AnyBackend = "auto", partition: str | Partitioner = "auto", *, check: bool = True
) -> CapturedCompiler:
    """A backend for torch.compile: `torch.compile(fn, backend=aotkit.torch_backend("nop", "nx_min_cut"))`.

    Each graph that Dynamo captures is compared with eager on its first run, unless `check` is off.
    """
    return CapturedCompiler(recipe_of(None, backend, partition, dynamic=False), check)
