"""What is done otherwise than Inductor does while it writes kernels, where this version of torch allows it.

Each change patches private parts of Inductor, and most read and rewrite the text of its kernels. One that was not tried
with this version of torch, or does not find what it patches, is off: then that part of the kernels is as Inductor
writes it, slower and, but for `masked_loads`, no less right. `aotkit doctor` says which are off, and why.
"""

import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

import torch

from aotkit.torch_private.kernel_changes.partial_sums import kernel_that_adds_up, nodes_added_up, operator_that_adds_up

__all__ = [
    "CHANGES",
    "Change",
    "changed_kernels",
    "kernel_that_adds_up",
    "nodes_added_up",
    "operator_that_adds_up",
    "switched_off",
]

Enter = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Change:
    """A context manager that is in force while a graph is compiled.

    Attributes:
        place: module and function.
        newest: the newest version of torch with which it was tried.
        fused_only: for graphs without matrix products, convolutions and attention.
    """

    place: str
    newest: tuple[int, int]
    fused_only: bool = False

    @property
    def name(self) -> str:
        return self.place.rpartition(".")[2]


# In this order: the bodies of mixed reductions are written by their own code, so what is done to all bodies comes after
# them. Those of 2.13 are for GPUs, and nobody has looked at a newer torch's kernels on one.
CHANGES = (
    Change("realizing.without_stored_random_bits", (2, 15)),
    Change("masked_loads.masked_values_at_hand", (2, 15)),  # 2.14.1 has it mended, too
    Change("narrow_sums.narrow_sums", (2, 13)),
    Change("row_reductions.whole_rows", (2, 13)),
    Change("mixed_reductions.mixed_reductions", (2, 13)),
    Change("gathered.stored_gathers", (2, 13)),
    Change("extrema.extrema_in_one_instruction", (2, 13)),
    Change("softmax_sums.quick_softmax_sums", (2, 13)),
    Change("late_loads.late_loads", (2, 13)),
    # Torch launches kernels from C++, but not those with launch attributes: networks wait for launches longer than
    # their short kernels take.
    Change("dependent_launches.dependent_launches", (2, 13), fused_only=True),
)


@contextmanager
def changed_kernels(*, is_fused: bool) -> Iterator[None]:
    """For the time of compiling a graph, all changes for its kind that are not off.

    Args:
        is_fused: whether the graph has no matrix products, convolutions or attention.
    """
    with ExitStack() as changed:
        for change in CHANGES:
            enter = _found(change)
            if not isinstance(enter, str) and (is_fused or not change.fused_only):
                changed.enter_context(enter())
        yield


def switched_off() -> Mapping[str, str]:
    """The changes that are off, by name, and why."""
    found = {change.name: _found(change) for change in CHANGES}
    return {name: reason for name, reason in found.items() if isinstance(reason, str)}


def _found(change: Change) -> Enter | str:
    """How to begin with a change, or why it is off."""
    if tuple(map(int, torch.__version__.split(".")[:2])) > change.newest:
        return f"written for torch up to {'.'.join(map(str, change.newest))}"
    return _tried(change.place)


@functools.cache
def _tried(place: str) -> Enter | str:
    module, _, name = place.rpartition(".")
    try:
        enter: Enter = getattr(importlib.import_module(f"aotkit.torch_private.kernel_changes.{module}"), name)
        with enter():  # takes what it patches
            return enter
    except (ImportError, AttributeError) as e:
        return f"not in this torch: {e}"
