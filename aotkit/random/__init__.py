"""Random numbers that are the same in every backend, in eager, and when they are recomputed."""

from aotkit.random.draws import Draws, SeedNeeded, new_seed
from aotkit.random.generators import (
    _other_random_states,
    random_state,
    random_states,
    set_random_states,
    watched_generator,
)
from aotkit.random.shared import SharedRandom

__all__ = [
    "Draws",
    "SeedNeeded",
    "SharedRandom",
    "_other_random_states",
    "new_seed",
    "random_state",
    "random_states",
    "set_random_states",
    "watched_generator",
]
