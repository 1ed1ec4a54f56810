"""Backends that compile parts of a graph: each operation goes to the first that takes it."""

from aotkit.regions.backend import options_of, shared
from aotkit.regions.division import Options
from aotkit.regions.parts import subgraph

__all__ = [
    "Options",
    "options_of",
    "shared",
    "subgraph",
]
