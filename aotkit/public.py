"""The public names of `aotkit`, which has them from here when the first of them is asked for."""

from aotkit import nn
from aotkit.api import bench, by_region, check, diff, extract, frontier, memory_efficient_fusion, torch_backend
from aotkit.checking import CheckReport
from aotkit.compiled import CompiledFunction
from aotkit.compiler import compile
from aotkit.errors import (
    AotkitError,
    BudgetError,
    CompileError,
    DuplicateNameError,
    EagerCallWarning,
    EagerFallbackWarning,
    MismatchError,
    RecompilationWarning,
    TraceError,
    UnavailableError,
    UndecidedWarning,
    UnknownNameError,
    UnsupportedError,
)
from aotkit.graphs import Graphs
from aotkit.interfaces import Backend, GraphCompiler, Kernel, Partitioner
from aotkit.registry import (
    backend_status,
    get_backend,
    get_partitioner,
    list_backends,
    list_partitioners,
    partitioner_status,
    register_backend,
    register_partitioner,
    unregister_backend,
    unregister_partitioner,
)

__all__ = [
    "AotkitError",
    "Backend",
    "BudgetError",
    "CheckReport",
    "CompileError",
    "CompiledFunction",
    "DuplicateNameError",
    "EagerCallWarning",
    "EagerFallbackWarning",
    "GraphCompiler",
    "Graphs",
    "Kernel",
    "MismatchError",
    "Partitioner",
    "RecompilationWarning",
    "TraceError",
    "UnavailableError",
    "UndecidedWarning",
    "UnknownNameError",
    "UnsupportedError",
    "backend_status",
    "bench",
    "by_region",
    "check",
    "compile",
    "diff",
    "extract",
    "frontier",
    "get_backend",
    "get_partitioner",
    "list_backends",
    "list_partitioners",
    "memory_efficient_fusion",
    "nn",
    "partitioner_status",
    "register_backend",
    "register_partitioner",
    "torch_backend",
    "unregister_backend",
    "unregister_partitioner",
]
