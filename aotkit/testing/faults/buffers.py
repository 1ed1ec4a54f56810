"""Memory that several calls use, or several backward passes, or that belongs to the caller."""

import threading
from collections.abc import Sequence
from typing import Any

import torch

from aotkit.testing.faults.memory import scattered, written
from aotkit.testing.faults.planting import Run, Subject

faults = Subject("buffers")


def _into_buffers(results: Sequence[Any], buffers: list[Any]) -> list[Any]:
    new = [r.detach() for r in results]
    buffers[:] = buffers or [torch.empty_like(r) for r in new]
    return [buffer.data.copy_(r) for buffer, r in zip(buffers, new, strict=True)]


@faults.run("softmax")
def output_buffer_reused(run: Run, arguments: list[Any], kept: list[Any]) -> Sequence[Any]:
    """Each call returns the same memory, so that the next call overwrites what the caller still holds."""
    output, *saved = run(*arguments)
    return [*_into_buffers([output], kept), *saved]


@faults.run("softmax")
def saved_buffer_reused(run: Run, arguments: list[Any], kept: list[Any]) -> Sequence[Any]:
    """Saved values stay in one buffer, which a second call overwrites before the first one's backward pass."""
    output, *saved = run(*arguments)
    return [output, *_into_buffers(saved, kept)]


@faults.run("gelu_mlp", "backward")
def gradient_buffer_reused(run: Run, arguments: list[Any], kept: list[Any]) -> Sequence[Any]:
    """Each backward pass returns the same memory."""
    return _into_buffers(run(*arguments), kept)


@faults.run(scattered)
def zeroed_once(run: Run, arguments: list[Any], kept: list[Any]) -> Sequence[Any]:
    """The memory that a scatter adds to is zeroed before the first call, but not before later ones."""
    output, *others = run(*arguments)
    kept[:] = [torch.where(written(arguments[1]), output, kept[0] if kept else 0.0)]
    return [kept[0].clone(), *others]


@faults.run("gelu_mlp", "backward")
def saved_value_overwritten(run: Run, arguments: list[Any], kept: list[Any]) -> Sequence[Any]:
    """The backward pass writes to a saved value, so that a second one reads something else."""
    results = run(*arguments)
    arguments[-2].data.zero_()
    return results


@faults.run("pointwise_chain", "backward")
def tangent_overwritten(run: Run, arguments: list[Any], kept: list[Any]) -> Sequence[Any]:
    """The backward pass stores its result in the gradient that it was given."""
    results = run(*arguments)
    arguments[-1].data.copy_(results[0])
    return [arguments[-1]] * len(results)


@faults.run("activations")
def scratch_shared_between_threads(run: Run, arguments: list[Any], kept: list[Any]) -> Sequence[Any]:
    """Two calls at a time use the same scratch memory for their input."""
    (x,) = arguments
    if not kept:
        kept.extend([torch.empty_like(x), threading.Event()])
    scratch, other_call = kept
    scratch.data.copy_(x.detach())
    other_call.set()
    other_call.clear()
    other_call.wait(0.02)  # until another thread has written
    return run(scratch.clone())
