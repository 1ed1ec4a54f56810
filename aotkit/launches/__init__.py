"""What compiled graphs launch: kernels in order, what is in each, the memory that they move, and their time."""

from aotkit.launches.allocations import most_allocated
from aotkit.launches.kernels import Kernels, Launched, kernels_of
from aotkit.launches.samples import Phases, Samples, Spread, Step, Tell, silent, speedup, spread
from aotkit.launches.stopwatch import Flush, events, seconds_between

__all__ = [
    "Flush",
    "Kernels",
    "Launched",
    "Phases",
    "Samples",
    "Spread",
    "Step",
    "Tell",
    "events",
    "kernels_of",
    "most_allocated",
    "seconds_between",
    "silent",
    "speedup",
    "spread",
]
