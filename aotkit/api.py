"""The public names of `aotkit`, which has them from here when the first of them is asked for.

Here are those around `compile`: extracting graphs, checking once, fusing, and backends for torch.compile.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn as modules
from torch.fx import GraphModule

from aotkit.capture import CapturedCompiler, Check, Randomness, cpp_compiler, recipe_of, require_check
from aotkit.checking import CheckReport
from aotkit.compiled import CompiledFunction, CompiledModule, function_of, uncompiled
from aotkit.compiler import Capture, compile
from aotkit.errors import (
    AotkitError,
    BudgetError,
    CompileError,
    DuplicateNameError,
    EagerCallWarning,
    EagerFallbackWarning,
    MismatchError,
    RankError,
    RecompilationWarning,
    TraceError,
    UnavailableError,
    UndecidedWarning,
    UnknownNameError,
    UnsupportedError,
)
from aotkit.inspection import Graphs
from aotkit.interfaces import Backend, GraphCompiler, Partitioner
from aotkit.registry import (
    BackendSpec,
    OneBackend,
    backend_status,
    get_backend,
    get_partitioner,
    list_backends,
    list_partitioners,
    name_of,
    named_backends,
    partitioner_status,
    register_backend,
    register_partitioner,
    unregister_backend,
    unregister_partitioner,
)
from aotkit.saved import Step, loaded, read
from aotkit.stages import Kernel
from aotkit.view import GraphDiff, compared, require_graphs

if TYPE_CHECKING:  # `aotkit` imports these when they are asked for
    from aotkit import nn
    from aotkit.benchmark import bench
    from aotkit.benchmark.frontier import frontier
    from aotkit.fusing import FusionConfig, FusionReport, fuse, fusion_report, unfuse
    from aotkit.tuning import autotune

__all__ = [
    "AotkitError", "Backend", "BudgetError", "CheckReport", "CompileError", "CompiledFunction", "DuplicateNameError",
    "EagerCallWarning", "EagerFallbackWarning", "FusionConfig", "FusionReport", "GraphCompiler", "Graphs", "Kernel",
    "MismatchError", "Partitioner", "RankError", "RecompilationWarning", "TraceError", "UnavailableError",
    "UndecidedWarning", "UnknownNameError", "UnsupportedError", "autotune", "backend_status", "bench", "by_region",
    "check", "compile", "diff", "extract", "frontier", "fuse", "fusion_report", "get_backend", "get_partitioner",
    "list_backends", "list_partitioners", "load", "memory_efficient_fusion", "nn", "partitioner_status",
    "register_backend", "register_partitioner", "torch_backend", "unfuse", "unregister_backend",
    "unregister_partitioner",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])


def extract(
    fn: Callable[..., Any],
    /,
    *args: Any,
    backend: BackendSpec = "nop",
    partition: str | Partitioner = "default",
    capture: Capture = "auto",
    **kwargs: Any,
) -> Graphs:
    """The joint, forward and backward graphs of `fn(*args, **kwargs)`.

    `backend` matters only for its decompositions and its joint pass, which shape the graphs.
    """
    compiled: Any = compile(fn, backend=backend, partition=partition, check=False, capture=capture)
    return function_of(compiled).graphs(*args, **kwargs)


def check(
    fn: Callable[..., Any],
    /,
    *args: Any,
    backend: BackendSpec = "auto",
    partition: str | Partitioner = "auto",
    capture: Capture = "auto",
    random: Randomness = "shared",
    **kwargs: Any,
) -> CheckReport:
    """Compile `fn` for these inputs and compare outputs, gradients and mutated inputs with eager's.

    Raises:
        MismatchError: they differ; its `report` says where.
    """
    compiled: Any = compile(fn, backend=backend, partition=partition, capture=capture, random=random)
    return function_of(compiled).report(*args, **kwargs)


def load(path: str | os.PathLike[str], fn: Callable[..., Any], /, *, trusted: bool = False) -> Step:
    """What `compile(fn).save(path, ...)` wrote, in another process: the same step, without tracing or compiling.

    It takes calls like the one that it was saved for: the same structure, constants, shapes, dtypes and switches.
    Parameters and buffers are those of the module, found by name. The function itself is not run, nor are hooks of the
    module itself. On loading, one step on made-up values is compared with what it gave when it was saved.

    Args:
        fn: the module or function; its code is taken to be what it was.
        trusted: load a file that another user has saved. It has machine code in it, which runs.

    Raises:
        OSError: the file cannot be read.
        UnavailableError: it is damaged, not this user's, or of another torch, machine or model; the message says which.
        MismatchError: it computes something else here.
    """
    fn = uncompiled(fn) if isinstance(fn, CompiledModule) else getattr(fn, "__wrapped__", fn)
    return loaded(fn.forward if isinstance(fn, modules.Module) else fn, *read(path, trusted))


def diff(a: Graphs | Mapping[str, Any], b: Graphs | Mapping[str, Any], /) -> GraphDiff:
    """What two `Graphs` save, recompute, compute and fuse differently: two partitions, backends or versions of torch.

    Nodes are compared by what they compute, not by their names. Either may be the data of `Graphs.json()`, as
    `json.load` reads it from a file. Print the result, show it in a notebook, or save it by `.save_html(path)`.

    Raises:
        TypeError, ValueError: an argument is neither.
    """
    return compared(_data_of(a, "A"), _data_of(b, "B"))


def _data_of(graphs: Graphs | Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if isinstance(graphs, Graphs):
        return graphs.json()
    if not isinstance(graphs, Mapping):
        raise TypeError(f"diff compares Graphs or the data of Graphs.json(), not {type(graphs).__name__}")
    require_graphs(graphs, name)
    return graphs


def memory_efficient_fusion(fn: F, /, **options: Any) -> F:
    """Compile for training with fused kernels and few saved values.

    It uses what backend "auto" is for the graph's devices, with the `min_cut` partitioner, which recomputes cheap
    operations in the backward pass instead of saving their results. `options` are those of `compile`.

    Raises:
        UnavailableError: no backend that fuses runs on this machine.
    """
    if "backend" not in options and cpp_compiler() is None:
        raise UnavailableError("no backend that fuses runs here: there is no C++ compiler")
    compiled: Any = compile(fn, **{"partition": "min_cut", **options})
    return compiled  # type: ignore[no-any-return]


def torch_backend(
    backend: BackendSpec = "auto",
    partition: str | Partitioner = "auto",
    *,
    check: Check = True,
    random: Randomness = "shared",
) -> CapturedCompiler:
    """A backend for torch.compile: `torch.compile(fn, backend=aotkit.torch_backend("nop", "nx_min_cut"))`.

    Each graph that Dynamo captures is compared with eager on its first run, unless `check` is off; with "later", when
    it has been compiled in the background, see `compile`.
    `torch.compile(fn, backend="aotkit", options={"partition": "nx_min_cut"})` is the same by name.
    """
    require_check(check, "dynamo")
    return CapturedCompiler(recipe_of(None, backend, partition, dynamic=False, random=random), check)


def compile_captured(
    gm: GraphModule, example_inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Callable[..., Sequence[Any]]:
    """What `torch.compile(backend="aotkit")` calls for each graph; its `options` are those of `torch_backend`.

    Raises:
        TypeError: there is no such option, or a `mode` is given, which aotkit has none of.
    """
    if mode not in (None, "default"):
        raise TypeError(
            f"backend 'aotkit' has no mode {mode!r}; choose by options={{'backend': ..., 'partition': ...}}."
        )
    return torch_backend(**(options or {}))(gm, example_inputs)


def by_region(
    *backends: OneBackend,
    min_region_size: int = 2,
    horizontal: bool | None = None,
    skip_ops: Sequence[Any] = (),
    strict: bool = False,
    instead: Mapping[str, OneBackend] | None = None,
) -> Backend:
    """A backend that shares each graph among several: `backend=by_region("mine", "inductor", skip_ops=["aten.mm"])`.

    Each operation goes to the first backend that takes it, by its `declines`; one without `declines` takes all that is
    left. What a backend takes is cut into regions as large as possible, from which no value leads back into one, and
    which its compiler gets as graphs. All else runs as it is: what nobody takes, views at the edges of regions, copies
    that a region would return of what it is given. `Graphs.regions` tells what became of each operation, and why.
    `backend=["mine", "inductor"]` means the same, without options.

    A function is traced once for all of them: what any of them decomposes is decomposed, by the first one's rule where
    several have one. Their joint passes run one after the other, and none may write into saved values.

    Args:
        backends: each a name, a `Backend` or a graph compiler.
        min_region_size: the fewest operations, views aside, of which a region is made; 1: single ones, too.
        horizontal: also merge regions that read the same tensor, though neither reads the other's results. It is then
            read once, by fewer kernels, but what they compute lives longer. None: where `Backend.horizontal` says so.
        skip_ops: operators that no backend gets, as graphs have them: "aten.gelu", "aten.sum.dim_IntList", or objects.
        strict: an operation that every backend declines is a CompileError, and so is a compiler's failure; else such a
            region runs as it is, which the logger `aotkit` tells as a warning. What `min_region_size`, `skip_ops` and
            the edges of regions leave out is none.
        instead: other backends for some of the regions, by the digest of these, which `Graphs.regions` has. Equal
            regions have one digest, in another graph, too.

    Raises:
        UnknownNameError, UnavailableError: a backend cannot be had.
        TypeError, ValueError: an argument is none of the above, or a backend gets nothing.
    """
    from aotkit.stages import regions

    options = regions.options_of(min_region_size, horizontal, skip_ops, strict)
    others = {digest: (name_of(one), get_backend(one)) for digest, one in (instead or {}).items()}
    return regions.shared(named_backends(backends), options, others)
