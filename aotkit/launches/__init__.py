"""What compiled graphs launch: kernels in order, what is in each, the memory that they move, and their time."""

from aotkit.launches.allocations import most_allocated
from aotkit.launches.graph_launches import Around, Operators, Sequential, explained, launches_of
from aotkit.launches.kernels import Kernels, Launched, kernels_of
from aotkit.launches.stopwatch import Flush, events, seconds_between

__all__ = [
    "Around",
    "Flush",
    "Kernels",
    "Launched",
    "Operators",
    "Sequential",
    "events",
    "explained",
    "kernels_of",
    "launches_of",
    "most_allocated",
    "seconds_between",
]
