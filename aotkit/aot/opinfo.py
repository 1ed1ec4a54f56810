"""PyTorch's own test database: its operators, with samples of their inputs."""

import functools
import importlib
import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from aotkit.errors import UnavailableError

SEED = 20


@functools.cache
def operators() -> dict[str, Any]:
    """Every operator that can be differentiated in float32 on a CPU, under its full name.

    Raises:
        UnavailableError: what the database needs is not installed.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            database: Any = importlib.import_module("torch.testing._internal.common_methods_invocations")
    except ImportError as e:
        raise UnavailableError(f"PyTorch's test database needs more packages ({e}): pip install expecttest") from e
    # The database seeds inside of random operators; no graph can hold that, and callers seed outside.
    database.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    return {
        op.full_name: op
        for op in database.op_db
        if op.supports_autograd and torch.float32 in op.supported_backward_dtypes("cpu")
    }


def samples(operator: str, device: str = "cpu") -> Sequence[Any]:
    """The operator's samples in float32; new tensors with the same values on every call."""
    seed()
    with warnings.catch_warnings(action="ignore"):
        return list(operators()[operator].sample_inputs(device, torch.float32, requires_grad=True))


def function(operator: str, sample: Any) -> Callable[..., Any]:
    """The operator itself; or followed by what makes its result unique, such as the signs of eigenvectors."""
    op, process = operators()[operator].op, sample.output_process_fn_grad
    if process.__qualname__.startswith("SampleInput."):  # the default, which changes nothing
        return op  # type: ignore[no-any-return]
    return lambda *args, **kwargs: process(op(*args, **kwargs))


def seed() -> None:
    """Put every generator that samples and operators draw from at one place."""
    import numpy

    torch.manual_seed(SEED)
    random.seed(SEED)
    numpy.random.seed(SEED)
