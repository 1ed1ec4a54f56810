"""Requirements on errors: none is swallowed, each names the backend, and the next call works."""

import functools
from typing import Any

import torch
from torch import Tensor

from aotkit.errors import CompileError
from aotkit.testing.conformance.compare import assert_close
from aotkit.testing.conformance.requirements import Requirements, Subject

ERRORS = Requirements("errors")
REFUSAL = "too large for this operator"


@functools.cache
def _refuses_large_values() -> Any:
    """An operator that no backend knows; it raises ValueError for values above 100, and doubles others."""

    @torch.library.custom_op("aotkit_testing::refuses_large_values", mutates_args=())
    def refuses(x: Tensor) -> Tensor:
        if bool((x > 100).any()):
            raise ValueError(REFUSAL)
        return x * 2

    @refuses.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    refuses.register_autograd(lambda ctx, gradient: refuses(gradient))
    return refuses


def _function(x: Tensor) -> Any:
    return _refuses_large_values()(x.sin() + x) + 1


def _input(subject: Subject, scale: float = 1.0) -> Tensor:
    return (torch.linspace(-2, 2, 6, device=subject.device) * scale).requires_grad_()


def _must_raise(subject: Subject, call: Any) -> None:
    try:
        call()
    except Exception as e:
        _is_right(subject, e)
    else:
        raise AssertionError("an operator raised, but the call returned a result")


def _is_right(subject: Subject, error: Exception) -> None:
    if isinstance(error, CompileError):
        assert repr(subject.name) in str(error), f"the CompileError does not name {subject.name!r}: {error}"
    else:
        assert REFUSAL in str(error), f"an operator raised {REFUSAL!r}, the caller got {type(error).__name__}: {error}"


@ERRORS
def unknown_operator(subject: Subject) -> None:
    """A custom operator runs as in eager, or is refused with a CompileError that names the backend."""
    compiled, x = subject.compile(_function), _input(subject)
    try:
        got = compiled(x)
    except CompileError as e:
        _is_right(subject, e)
        return
    assert_close(got, _function(x), "the output")


@ERRORS
def raises_in_compile(subject: Subject) -> None:
    """What goes wrong on the first call reaches the caller."""
    _must_raise(subject, lambda: subject.compile(_function)(_input(subject, 1000)))


@ERRORS
def raises_at_run_time(subject: Subject) -> None:
    """What goes wrong on a later call reaches the caller, and the call after that works."""
    compiled = subject.compile(_function)
    _must_raise(subject, lambda: [compiled(_input(subject, scale)) for scale in (1, 2, 1000)])
    x = _input(subject)
    assert_close(compiled(x), _function(x), "the output of a call after one that raised")


@ERRORS
def raises_in_the_backward_pass(subject: Subject) -> None:
    """What goes wrong in the backward pass reaches the caller."""
    compiled, x = subject.compile(_function), _input(subject)

    def call() -> None:
        for weight in (1.0, 1000.0):
            output = compiled(x)
            torch.autograd.grad(output, x, torch.full_like(output, weight))

    _must_raise(subject, call)
