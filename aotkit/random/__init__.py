"""Random numbers that are the same in every backend, in eager, and when they are recomputed."""
