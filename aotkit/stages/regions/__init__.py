"""Backends that compile parts of a graph: each operation goes to the first that takes it."""

from aotkit.passes import Region, Regions
from aotkit.stages.regions.backend import loads_of, options_of, shared
from aotkit.stages.regions.division import Choice, Options, RegionCompiler
from aotkit.stages.regions.kept import Load, load
from aotkit.stages.regions.parts import computing, places_read
from aotkit.stages.regions.suited import why_unsuited

__all__ = [
    "Choice",
    "Load",
    "Options",
    "Region",
    "RegionCompiler",
    "Regions",
    "computing",
    "load",
    "loads_of",
    "options_of",
    "places_read",
    "shared",
    "why_unsuited",
]
