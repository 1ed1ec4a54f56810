"""CUDA graphs around any backend: recorded on the second run, then replayed."""

from aotkit.stages.cuda_graphs.compiler import with_cuda_graphs

__all__ = [
    "with_cuda_graphs",
]
