"""What every compiler from elsewhere needs to be a backend: docs/write_a_backend.md shows one of forty lines."""

from aotkit.backends.foreign.exported import exported
from aotkit.backends.foreign.graphs import Build, Execute, compiling
from aotkit.backends.foreign.making import foreign_backend
from aotkit.backends.foreign.operators import CAST, DTYPES, OPERATORS
from aotkit.backends.foreign.packages import missing
from aotkit.backends.foreign.spelling import call

__all__ = [
    "CAST",
    "DTYPES",
    "OPERATORS",
    "Build",
    "Execute",
    "call",
    "compiling",
    "exported",
    "foreign_backend",
    "missing",
]
