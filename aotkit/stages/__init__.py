"""The stages of a compilation: joint graph -> joint pass -> cut -> compiled forward and backward graphs.

`pipeline` goes through them; `calls` is how what plug-ins provide is called, and `graph_launches` what that launches.
`regions` and `cuda_graphs` make backends of backends.
"""

from aotkit.stages import regions
from aotkit.stages.account import account
from aotkit.stages.calls import Product, boxed_call
from aotkit.stages.chunks import compile_with_chunks, load_with_chunks
from aotkit.stages.cuda_graphs import with_cuda_graphs
from aotkit.stages.graph_launches import Around, BlackBox, Explained, Kernel, Operators, computes, explained
from aotkit.stages.pipeline import Pipeline
from aotkit.stages.regions import Region, Regions, computing, places_read, why_unsuited

__all__ = [
    "Around",
    "BlackBox",
    "Explained",
    "Kernel",
    "Operators",
    "Pipeline",
    "Product",
    "Region",
    "Regions",
    "account",
    "boxed_call",
    "compile_with_chunks",
    "computes",
    "computing",
    "explained",
    "load_with_chunks",
    "places_read",
    "regions",
    "why_unsuited",
    "with_cuda_graphs",
]
