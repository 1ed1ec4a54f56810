"""Inputs that a graph on CUDA takes to begin at multiples of 16 bytes: Inductor copies those that do not."""

import functools
import inspect
import operator
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from aotkit.interfaces import Boxed
from aotkit.torch_private.tensors import ALIGNMENT, aligning


def within_alignment(entry: Any) -> tuple[Any, dict[str, Any]]:
    """What torch's `align_inputs_from_check_idxs` stands around, if it made `entry`, and its other arguments."""
    parts = dict(inspect.getclosurevars(entry).nonlocals) if inspect.isfunction(entry) else {}
    if parts.keys() == {"model", "inputs_to_check", "mutated_input_idxs"}:
        return parts.pop("model"), parts
    return entry, {}


def aligned(run: Boxed, inputs_to_check: Sequence[int], mutated_input_idxs: Any) -> Boxed:
    """The same as torch's `align_inputs_from_check_idxs`, which looks at one input after the other in Python.

    That is half a microsecond each. `torch.compile` checks the data alone; here parameters are no different.
    """
    if not inputs_to_check:
        return run
    with_copies: Boxed = aligning(run, inputs_to_check, mutated_input_idxs)
    checked = operator.itemgetter(*inputs_to_check, inputs_to_check[0])  # of one number alone, it would get no tuple

    def call(inputs: list[Any]) -> Sequence[Any]:
        if functools.reduce(operator.or_, map(Tensor.data_ptr, checked(inputs))) % ALIGNMENT:
            return with_copies(inputs)
        return run(inputs)

    return call
