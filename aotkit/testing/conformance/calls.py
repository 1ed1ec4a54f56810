"""Requirements on several calls of one compiled function: nothing of one call may reach another, or stay alive."""

import functools
import gc
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from aotkit.testing.conformance.compare import assert_close, assert_equal
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


def normalized(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Has several outputs, one of them a view and one without gradients."""
    y = x @ w
    return F.layer_norm(y.sin(), (4,)).cos(), y.relu().sum(), x.t() * 2, y.argmax(1)


def inputs(subject: Subject, rows: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Arguments of these functions; both require gradients."""
    generator = torch.Generator().manual_seed(seed)
    made = (torch.randn(shape, generator=generator) for shape in ((rows, 6), (6, 4)))
    x, w = (t.to(subject.device).requires_grad_() for t in made)
    return x, w


def observed(output: Tensor, args: tuple[Tensor, ...], retain_graph: bool = False) -> Mapping[str, list[Tensor]]:
    """An output, and gradients of a weighted sum of it."""
    weights = torch.linspace(0.5, 1.5, output.numel(), device=output.device).reshape(output.shape)
    return {
        "output": [output],
        "gradient": list(torch.autograd.grad(output, args, weights, retain_graph=retain_graph)),
    }


def results(function: Callable[..., Tensor], args: tuple[Tensor, ...]) -> Mapping[str, list[Tensor]]:
    """The output of a call, and gradients."""
    return observed(function(*args), args)


def agree(
    compiled: Callable[..., Tensor], args: tuple[Tensor, ...], where: str, function: Callable[..., Tensor] = mlp
) -> None:
    """Demand eager's output and gradients of a compiled function."""
    assert_equal(results(compiled, args), results(function, args), where)


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
    want = results(mlp, inputs(subject, seed=1))
    assert_equal(first, want, "results of the first call, looked at after the second")


@REUSE
def two_calls_before_the_backward_passes(subject: Subject) -> None:
    """Each backward pass reads the values that its own forward pass saved."""
    compiled = subject.compile(mlp)
    calls = [inputs(subject, seed=seed) for seed in (1, 2)]
    outputs = [compiled(*args) for args in calls]
    for args, output in zip(calls, outputs, strict=True):
        assert_equal(observed(output, args), results(mlp, args), "backward after both forwards")


@REUSE
def two_functions(subject: Subject) -> None:
    """Two functions compiled one after the other do not disturb each other."""

    def twice(x: Tensor, w: Tensor) -> Tensor:
        return mlp(x, w) * 2

    double, compiled = subject.compile(twice), subject.compile(mlp)
    args = inputs(subject)
    agree(compiled, args, "the second function")
    agree(double, args, "the first function", twice)


@REUSE
def accumulates_gradients(subject: Subject) -> None:
    """`.grad` accumulates over calls, as in eager."""
    found = {}
    for name, function in (("compiled", subject.compile(mlp)), ("eager", mlp)):
        args = inputs(subject)
        for _ in range(3):
            torch.autograd.backward(function(*args).square().sum())
        found[name] = {".grad of input": [t.grad for t in args]}
    assert_equal(found["compiled"], found["eager"], "three backward passes")


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
    found = results(compiled, inputs(subject))
    references = [weakref.ref(t) for tensors in found.values() for t in tensors]
    del found
    _dead(references, "results that the caller dropped")


@BOXED
def memory_of_outputs_freed(subject: Subject) -> None:
    """The memory of a call's inputs and results goes too, not only the tensors."""
    compiled = _used(subject)
    args = inputs(subject)
    found = results(compiled, args)
    # The references live as long as these.
    storages = [t.untyped_storage() for tensors in (args, *found.values()) for t in tensors]
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

    def many_calls(seed: int) -> None:
        for i in range(20):
            agree(compiled, inputs(subject, seed=10 * i + seed), f"call {i} of thread {seed}")

    _in_threads([functools.partial(many_calls, seed) for seed in (1, 2)])


@THREADS
def backward_in_another_thread(subject: Subject) -> None:
    """The backward pass may run in another thread than the forward pass."""
    compiled, args = subject.compile(mlp), inputs(subject)
    output = compiled(*args)
    found: list[Mapping[str, list[Tensor]]] = []
    _in_threads([lambda: found.append(observed(output, args))])
    assert_equal(found[0], results(mlp, args), "backward in a thread")


@THREADS
def compiled_in_a_thread(subject: Subject) -> None:
    """A function may be compiled in a thread and called in another."""
    compiled = subject.compile(mlp)
    _in_threads([lambda: agree(compiled, inputs(subject), "in the thread that compiled")])
    agree(compiled, inputs(subject, seed=1), "in the main thread")


def _in_threads(work: list[Callable[[], Any]]) -> None:
    """Raises what one of them raises."""
    with ThreadPoolExecutor(len(work)) as pool:
        for future in [pool.submit(do) for do in work]:
            future.result()


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
        agree(compiled, inputs(subject, rows), f"call with {rows} rows", function)


@RETAIN_GRAPH
def twice(subject: Subject) -> None:
    """With `retain_graph`, a second backward pass gives the same gradients."""
    args = inputs(subject)
    output = subject.compile(mlp)(*args)
    for i in range(3):
        assert_equal(observed(output, args, retain_graph=True), results(mlp, args), f"backward pass {i + 1}")


@RETAIN_GRAPH
def other_gradients(subject: Subject) -> None:
    """A second backward pass may have other output gradients."""
    args = inputs(subject)
    output, want = subject.compile(mlp)(*args), mlp(*args)
    for factor in (1.0, -2.0):
        got, expected = (observed(o * factor, args, retain_graph=True) for o in (output, want))
        assert_equal(got, expected, f"backward pass with gradients times {factor}")
