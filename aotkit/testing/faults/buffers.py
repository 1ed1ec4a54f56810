"""Memory that several calls use, or several backward passes, or that belongs to the caller."""

import threading
from typing import Any

import torch
from torch import Tensor

from aotkit.testing.faults.memory import scattered
from aotkit.testing.faults.planting import Run, Subject

faults = Subject("buffers")


@faults.run("softmax")
def output_buffer_reused(run: Run) -> Run:
    """Each call returns the same memory, so that the next call overwrites what the caller still holds."""
    return _into_buffers(run, slice(0, 1))


@faults.run("softmax")
def saved_buffer_reused(run: Run) -> Run:
    """Saved values stay in one buffer, which a second call overwrites before the first one's backward pass."""
    return _into_buffers(run, slice(1, None))


@faults.run("gelu_mlp", "backward")
def gradient_buffer_reused(run: Run) -> Run:
    """Each backward pass returns the same memory."""
    return _into_buffers(run, slice(0, None))


def _into_buffers(run: Run, which: slice) -> Run:
    buffers: list[Tensor] = []

    def call(*arguments: Any) -> list[Any]:
        results = list(run(*arguments))
        new = [r.detach() for r in results[which]]
        if not buffers:
            buffers.extend(torch.empty_like(r) for r in new)
        results[which] = [buffer.data.copy_(r) for buffer, r in zip(buffers, new, strict=True)]
        return results

    return call


@faults.run(scattered)
def zeroed_once(run: Run) -> Run:
    """The memory that a scatter adds to is zeroed before the first call, but not before later ones."""
    memory: list[Tensor] = []

    def call(*arguments: Any) -> list[Any]:
        output, *others = run(*arguments)
        written = torch.zeros(7, 1, dtype=torch.bool).index_fill(0, arguments[1], True)
        memory[:] = [torch.where(written, output, memory[0] if memory else 0.0)]
        return [memory[0].clone(), *others]

    return call


@faults.run("gelu_mlp", "backward")
def saved_value_overwritten(run: Run) -> Run:
    """The backward pass writes to a saved value, so that a second one reads something else."""

    def call(*arguments: Any) -> list[Any]:
        results = list(run(*arguments))
        arguments[-2].data.zero_()
        return results

    return call


@faults.run("pointwise_chain", "backward")
def tangent_overwritten(run: Run) -> Run:
    """The backward pass stores its result in the gradient that it was given."""

    def call(*arguments: Any) -> list[Any]:
        results = list(run(*arguments))
        arguments[-1].data.copy_(results[0])
        return [arguments[-1]] * len(results)

    return call


@faults.run("activations")
def scratch_shared_between_threads(run: Run) -> Run:
    """Two calls at a time use the same scratch memory for their input."""
    scratch: list[Tensor] = []
    other_call = threading.Event()

    def call(x: Tensor) -> list[Any]:
        if not scratch:
            scratch.append(torch.empty_like(x))
        scratch[0].data.copy_(x.detach())
        other_call.set()
        other_call.clear()
        other_call.wait(0.02)  # until another thread has written
        return list(run(scratch[0].clone()))

    return call
