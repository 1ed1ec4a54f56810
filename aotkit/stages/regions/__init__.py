"""Backends that compile parts of a graph: each operation goes to the first that takes it."""

from aotkit.passes import Region, Regions
from aotkit.stages.regions.backend import options_of, shared
from aotkit.stages.regions.division import Options
from aotkit.stages.regions.parts import subgraph

__all__ = [
    "Options",
    "Region",
    "Regions",
    "options_of",
    "shared",
    "subgraph",
]
