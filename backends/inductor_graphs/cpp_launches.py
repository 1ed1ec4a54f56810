"""Calls of graphs for which Inductor wrote C++ that launches their kernels."""

import inspect
import threading
from collections.abc import Sequence
from typing import Any

import torch

from aotkit.backends.inductor_graphs.alignment import within_alignment
from aotkit.interfaces import Boxed
from aotkit.torch_private import native

CPP_LAUNCH = 1 / 3  # of the host's time that a launch from Python takes
# What the Python that Inductor writes around its C++ refers to, if all results are tensors and no constants are passed.
_NAMES = {
    "torch", "tensor", "Tensor", "isinstance", "_C", "_aoti", "unsafe_alloc_void_ptrs_from_tensors", "clear",
    "alloc_tensors_by_stealing_from_void_ptrs",
}  # fmt: skip
_thread = threading.local()


def launched_graph(compiled: Any) -> Boxed:
    """The way to call such a `CompiledFxGraph`; from the second run on, without Inductor's own entry.

    The C++ calls the driver, which knows no context in a thread that has used no CUDA runtime yet.
    """
    if not hasattr(compiled, "current_callable"):  # Inductor leaves a graph without operations as it is
        return compiled  # type: ignore[no-any-return]
    run: Boxed = compiled

    def call(inputs: list[Any]) -> Sequence[Any]:
        nonlocal run
        if not hasattr(_thread, "has_context"):
            torch.zeros(1, device="cuda")
            _thread.has_context = True
        results = run(inputs)
        run = compiled.current_callable
        return results

    call._boxed_call = True  # type: ignore[attr-defined]
    found, library = _entry(compiled), native.library()
    if found is None or library is None:
        return call
    entry, aligned = found
    return library.launched(entry, call, tuple(aligned))  # type: ignore[no-any-return]


def _entry(compiled: Any) -> tuple[Any, Sequence[int]] | None:
    """The C++ function of a graph, and the inputs that it takes to be aligned; None if it is called in unknown ways."""
    function, alignment = within_alignment(compiled.current_callable)
    if not inspect.isfunction(function):
        return None
    nonlocals = inspect.getclosurevars(function).nonlocals
    entry = nonlocals.get("f")
    nested = [code for code in function.__code__.co_consts if inspect.iscode(code)]
    names = {name for code in (function.__code__, *nested) for name in code.co_names}
    if nonlocals.keys() != {"f"} or not inspect.isbuiltin(entry) or not names <= _NAMES:
        return None
    return entry, alignment.get("inputs_to_check", ())
