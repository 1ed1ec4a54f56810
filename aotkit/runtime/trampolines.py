"""Callables between a caller and what it wants called: in C++ where that is built, which saves a frame of Python."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from aotkit.interfaces import Boxed
from aotkit.random import new_seed
from aotkit.torch_private import native
from aotkit.torch_private.autograd import keeps_graph


class _Relay:
    _boxed_call = True

    def __init__(self, target: Boxed) -> None:
        self.target = target

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        return self.target(inputs)


def relay(target: Boxed) -> Any:
    """Calls its attribute `target`, which may be replaced."""
    library = native.library()
    return _Relay(target) if library is None else library.relay(target)


def unless_retained(run: Boxed, retained: Boxed) -> Boxed:
    """Calls the second in a backward pass after which the graph is kept, else the first."""
    if (library := native.library()) is not None:
        return library.unless_retained(run, retained)  # type: ignore[no-any-return]
    return lambda inputs: retained(inputs) if keeps_graph() else run(inputs)


def if_on_cpu(run: Boxed, otherwise: Boxed, numbers: Sequence[int]) -> Any:
    """Calls the first if the inputs of these numbers are on the CPU, else the second; takes attributes."""
    if (library := native.library()) is not None:
        return library.if_on_cpu(run, otherwise, tuple(numbers))

    def call(inputs: list[Any]) -> Sequence[Any]:
        for i in numbers:
            if not inputs[i].is_cpu:
                return otherwise(inputs)
        return run(inputs)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def with_seed(run: Boxed) -> Boxed:
    """Calls it with one more input, a new seed."""
    if (library := native.library()) is not None:
        return library.with_seed(run)  # type: ignore[no-any-return]

    def call(inputs: list[Any]) -> Sequence[Any]:
        inputs.append(new_seed())
        return run(inputs)

    return call


def outside_dynamo(run: Callable[..., Any]) -> Callable[..., Any]:
    """The same, whose Python Dynamo does not look at where a function that it captures calls it: in a backward pass.

    Dynamo is not imported for that: a second.
    """
    disabled: Callable[..., Any] | None = None

    def call(*args: Any) -> Any:
        nonlocal disabled
        if disabled is None:
            if "torch._dynamo" not in sys.modules:
                return run(*args)
            disabled = torch.compiler.disable(run)  # type: ignore[no-untyped-call]
        return disabled(*args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call
