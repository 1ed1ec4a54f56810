"""Random numbers that are the same in every backend, in eager, and when they are recomputed."""

from aotkit.random.draws import Draws, SeedNeeded, new_seed
from aotkit.random.operators import replacement

__all__ = [
    "Draws",
    "SeedNeeded",
    "new_seed",
    "replacement",
]
