"""Autograd: its engine, hooks for saved tensors, compiled autograd, the profiler."""

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

current_node = torch._C._current_autograd_node
set_grad_enabled: Any = torch._C._set_grad_enabled  # `torch.no_grad` would cost a microsecond
# Whether the backward pass that runs keeps its graph.
keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph


def has_saved_tensor_hooks() -> bool:
    """Whether the caller has hooks for saved tensors, as checkpoints have."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def without_saved_tensor_hooks() -> AbstractContextManager[Any]:
    """Keep the caller's hooks for saved tensors, if there are any, from what runs inside."""
    # Not always: functorch refuses any hooks, and the caller may have disabled them.
    return saved_tensors_hooks(lambda t: t, lambda t: t) if has_saved_tensor_hooks() else nullcontext()


def without_compiled_autograd() -> AbstractContextManager[Any]:
    """Keep torch's compiled autograd, if it is on, from what runs inside.

    A call of a function that Dynamo compiles is inside of it where `torch._dynamo.config.compiled_autograd` is set.
    """
    module: Any = sys.modules.get("torch._dynamo.compiled_autograd")
    return module._disable() if module is not None and module.compiled_autograd_enabled else nullcontext()


def current_stream(device: torch.device) -> int:
    """The stream of a CUDA device on which this thread works; `torch.cuda.current_stream` makes an object of it."""
    return int(torch._C._cuda_getCurrentRawStream(device.index))


def is_profiling() -> bool:
    """Whether a profiler is active in this thread: of what the CPU's allocator hands out there is no other record."""
    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]
