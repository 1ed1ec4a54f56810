"""Inductor for work that is mostly launches: C++ makes them, and of small tensors one launch runs several kernels.

Compiling takes longer than with `inductor`: half a minute the first time on a machine, a second later.
"""

import torch

from aotkit.backends.inductor import make_backend


def unavailable() -> str | None:
    """Why it cannot run here."""
    if torch.cuda.is_available():
        return None
    return "there is no CUDA device. On a CPU there are no launches to save: use 'inductor'."


backend = make_backend(launches_from_cpp=True, unavailable=unavailable)
