"""Random numbers that are the same in every backend, in eager, and when they are recomputed."""

from aotkit.random.draws import DECOMPOSED, WORDS, Draws, SeedNeeded, hashed, index_type, kept, key, new_seed
from aotkit.random.generators import (
    other_random_states,
    random_state,
    random_states,
    set_random_states,
    watched_generator,
)
from aotkit.random.operators import replacement

__all__ = [
    "DECOMPOSED",
    "WORDS",
    "Draws",
    "SeedNeeded",
    "hashed",
    "index_type",
    "kept",
    "key",
    "new_seed",
    "other_random_states",
    "random_state",
    "random_states",
    "replacement",
    "set_random_states",
    "watched_generator",
]
