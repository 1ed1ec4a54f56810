"""Backends that compile parts of a graph: each operation goes to the first that takes it."""

from aotkit.regions.backend import options_of, shared
from aotkit.regions.calls import subgraph
from aotkit.regions.division import Options

__all__ = [
    "Options",
    "options_of",
    "shared",
    "subgraph",
]
