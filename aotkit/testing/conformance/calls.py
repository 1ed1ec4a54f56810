"""Requirements on several calls of one compiled function: nothing of one call may reach another, or stay alive."""

import functools
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from aotkit.testing.conformance.compare import assert_close
from aotkit.testing.conformance.requirements import Requirements, Subject

REUSE = Requirements("reuse")
BOXED = Requirements("boxed")
THREADS = Requirements("threads")
INFERENCE = Requirements("inference")
DYNAMIC = Requirements("dynamic")
RETAIN_GRAPH = Requirements("retain_graph")
CALLS = [REUSE, BOXED, THREADS, INFERENCE, DYNAMIC, RETAIN_GRAPH]


def mlp(x: Tensor, w: Tensor) -> Tensor:
    """Saves several values for the backward pass."""
    return (F.gelu(x @ w).sin() * (x @ w).exp()).softmax(-1)


def inputs(subject: Subject, rows: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Arguments of `mlp`; both require gradients."""
    generator = torch.Generator().manual_seed(seed)
    made = (torch.randn(shape, generator=generator) for shape in ((rows, 6), (6, 4)))
    x, w = (t.to(subject.device).requires_grad_() for t in made)
    return x, w


def results(function: Callable[..., Tensor], args: tuple[Tensor, ...]) -> list[Tensor]:
    """The output, and gradients of a weighted sum of it."""
    output = function(*args)
    weights = torch.linspace(0.5, 1.5, output.numel(), device=output.device).reshape(output.shape)
    return [output, *torch.autograd.grad(output, args, weights)]


def agree(compiled: Callable[..., Tensor], args: tuple[Tensor, ...], what: str) -> None:
    """Demand eager's output and gradients of a function compiled from `mlp`."""
    same(results(compiled, args), results(mlp, args), what)


def same(got: list[Tensor], want: list[Tensor], what: str) -> None:
    """Demand equal outputs, then gradients."""
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        assert_close(g, w, f"{what}: gradient {i - 1}" if i else f"{what}: the output")


@REUSE
def second_call_fresh_values(subject: Subject) -> None:
    """A second call computes with its own values, not with those of the first."""
    compiled = subject.compile(mlp)
    for seed in (1, 2):
        agree(compiled, inputs(subject, seed=seed), f"call {seed}")


@REUSE
def equal_calls_equal_results(subject: Subject) -> None:
    """Equal calls give equal results, however often they come."""
    compiled = subject.compile(mlp)
    for call in range(1, 5):
        agree(compiled, inputs(subject), f"call {call} of equal ones")


@REUSE
def after_another_shape(subject: Subject) -> None:
    """A call computes the same after a call with other shapes."""
    compiled = subject.compile(mlp)
    for rows in (5, 7, 5, 1, 7):
        agree(compiled, inputs(subject, rows, seed=rows), f"call with {rows} rows")


@REUSE
def earlier_results_keep_their_values(subject: Subject) -> None:
    """What a call returned does not change when the next call runs."""
    compiled = subject.compile(mlp)
    first = results(compiled, inputs(subject, seed=1))
    results(compiled, inputs(subject, seed=2))
    same(first, results(mlp, inputs(subject, seed=1)), "results of the first call, looked at after the second")


@REUSE
def two_calls_before_the_backward_passes(subject: Subject) -> None:
    """Each backward pass reads the values that its own forward pass saved."""
    compiled = subject.compile(mlp)
    calls = [inputs(subject, seed=seed) for seed in (1, 2)]
    outputs = [compiled(*args) for args in calls]
    for args, output in zip(calls, outputs, strict=True):
        want = mlp(*args)
        got = torch.autograd.grad(output.square().sum(), args)
        same([output, *got], [want, *torch.autograd.grad(want.square().sum(), args)], "backward after both forwards")


@REUSE
def two_functions(subject: Subject) -> None:
    """Two functions compiled one after the other do not disturb each other."""
    double = subject.compile(lambda x, w: mlp(x, w) * 2)
    compiled = subject.compile(mlp)
    args = inputs(subject)
    agree(compiled, args, "the second function")
    same(results(double, args), results(lambda x, w: mlp(x, w) * 2, args), "the first function")


@REUSE
def accumulates_gradients(subject: Subject) -> None:
    """`.grad` accumulates over calls, as in eager."""
    compiled, got, want = subject.compile(mlp), inputs(subject), inputs(subject)
    for _ in range(3):
        torch.autograd.backward(compiled(*got).square().sum())
        torch.autograd.backward(mlp(*want).square().sum())
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        assert g.grad is not None
        assert w.grad is not None
        assert_close(g.grad, w.grad, f".grad of input {i} after three backward passes")


@BOXED
def inputs_freed(subject: Subject) -> None:
    """No argument stays alive after the call that it was for."""
    compiled = _used(subject)
    x, w = inputs(subject)
    references = [weakref.ref(t) for t in (x, w)]
    results(compiled, (x, w))
    del x, w
    _dead(references, "arguments of a finished call")


@BOXED
def outputs_freed(subject: Subject) -> None:
    """No result stays alive after its caller has dropped it."""
    compiled = _used(subject)
    references = [weakref.ref(t) for t in results(compiled, inputs(subject))]
    _dead(references, "results that the caller dropped")


@BOXED
def memory_of_outputs_freed(subject: Subject) -> None:
    """The memory of a call's inputs and results goes too, not only the tensors."""
    compiled = _used(subject)
    args = inputs(subject)
    found = results(compiled, args)
    storages = [t.untyped_storage() for t in (*args, *found)]  # the references live as long as these
    references = [weakref.ref(s) for s in storages]
    del args, found, storages
    _dead(references, "memory of inputs and results")


@BOXED
def compiled_function_freed(subject: Subject) -> None:
    """What a compiled function captured goes with it."""

    def use() -> list[Any]:
        scale = torch.full((4,), 1.5, device=subject.device)
        results(subject.compile(lambda x, w: mlp(x, w) * scale), inputs(subject))
        return [weakref.ref(scale)]

    _dead(use(), "a tensor that a dropped function had captured")


def _used(subject: Subject) -> Any:
    """A compiled function past its first calls: what compiling keeps to itself is not of interest."""
    compiled = subject.compile(mlp)
    for seed in (8, 9):
        results(compiled, inputs(subject, seed=seed))
    return compiled


def _dead(references: list[Any], what: str) -> None:
    gc.collect()
    alive = sum(r() is not None for r in references)
    assert not alive, f"{alive} of {len(references)} still alive: {what}"


@THREADS
def two_at_once(subject: Subject) -> None:
    """Two threads may call one compiled function at the same time."""
    compiled = subject.compile(mlp)
    agree(compiled, inputs(subject), "before any thread")
    _in_threads([functools.partial(_many_calls, subject, compiled, seed) for seed in (1, 2)])


@THREADS
def backward_in_another_thread(subject: Subject) -> None:
    """The backward pass may run in another thread than the forward pass."""
    compiled, args = subject.compile(mlp), inputs(subject)
    output, want = compiled(*args), mlp(*args)
    found: list[list[Tensor]] = []
    _in_threads([lambda: found.append(list(torch.autograd.grad(output.square().sum(), args)))])
    same([output, *found[0]], [want, *torch.autograd.grad(want.square().sum(), args)], "backward in a thread")


@THREADS
def compiled_in_a_thread(subject: Subject) -> None:
    """A function may be compiled in a thread and called in another."""
    compiled = subject.compile(mlp)
    _in_threads([lambda: agree(compiled, inputs(subject), "in the thread that compiled")])
    agree(compiled, inputs(subject, seed=1), "in the main thread")


def _many_calls(subject: Subject, compiled: Any, seed: int) -> None:
    for i in range(20):
        agree(compiled, inputs(subject, seed=10 * i + seed), f"call {i} of thread {seed}")


def _in_threads(work: list[Callable[[], Any]]) -> None:
    errors: list[Exception] = []

    def guarded(do: Callable[[], Any]) -> None:
        try:
            do()
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=guarded, args=(do,)) for do in work]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]


@INFERENCE
def no_grad(subject: Subject) -> None:
    """Under `torch.no_grad` the values are the same, and nothing requires gradients."""
    compiled, args = subject.compile(mlp), inputs(subject)
    with torch.no_grad():
        for _ in range(2):
            output = compiled(*args)
    assert not output.requires_grad
    assert_close(output, mlp(*args).detach(), "the output under no_grad")


@INFERENCE
def inference_mode(subject: Subject) -> None:
    """The same under `torch.inference_mode`."""
    compiled, args = subject.compile(mlp), inputs(subject)
    with torch.inference_mode():
        for _ in range(2):
            output = compiled(*args).clone()
        assert_close(output, mlp(*args), "the output under inference_mode")


@INFERENCE
def before_and_after_training(subject: Subject) -> None:
    """Calls with and without gradients may alternate."""
    compiled, args = subject.compile(mlp), inputs(subject)
    for _ in range(2):
        with torch.no_grad():
            assert_close(compiled(*args), mlp(*args), "the output under no_grad")
        agree(compiled, args, "a call with gradients")


@DYNAMIC
def open_size(subject: Subject) -> None:
    """With `dynamic=True`, calls with other sizes are right."""
    compiled = subject.compile(mlp, dynamic=True)
    for rows in (5, 8, 3, 11):
        agree(compiled, inputs(subject, rows), f"call with {rows} rows")


@DYNAMIC
def size_as_value(subject: Subject) -> None:
    """With `dynamic=True`, sizes that a function computes with are the call's."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).sum(0) / x.shape[0] + torch.arange(x.shape[0], device=x.device).sum() + x.reshape(-1).sum()

    compiled = subject.compile(function, dynamic=True)
    for rows in (5, 8, 3):
        args = inputs(subject, rows)
        same(results(compiled, args), results(function, args), f"call with {rows} rows")


@RETAIN_GRAPH
def twice(subject: Subject) -> None:
    """With `retain_graph`, a second backward pass gives the same gradients."""
    compiled, args = subject.compile(mlp), inputs(subject)
    output, want = compiled(*args), mlp(*args)
    expected = torch.autograd.grad(want.square().sum(), args)
    loss = output.square().sum()
    for i in range(3):
        got = torch.autograd.grad(loss, args, retain_graph=True)
        same([output, *got], [want, *expected], f"backward pass {i + 1}")


@RETAIN_GRAPH
def other_gradients(subject: Subject) -> None:
    """A second backward pass may have other output gradients."""
    compiled, args = subject.compile(mlp), inputs(subject)
    output, want = compiled(*args), mlp(*args)
    for factor in (1.0, -2.0):
        got, expected = (
            torch.autograd.grad(o, args, torch.full_like(o, factor), retain_graph=True) for o in (output, want)
        )
        same([output, *got], [want, *expected], f"backward pass with gradients {factor}")
