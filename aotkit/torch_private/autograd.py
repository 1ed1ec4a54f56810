"""Autograd: its engine, hooks for saved tensors, checkpoints, compiled autograd, the profiler."""

import functools
import inspect
import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
import torch.utils.checkpoint
from torch.autograd.graph import saved_tensors_hooks
from torch.fx import traceback as fx_traceback
from torch.utils.checkpoint import CheckpointPolicy, noop_context_fn

from aotkit.torch_private.dispatch import OperatorMode, dispatch_modes

current_node = torch._C._current_autograd_node
set_grad_enabled: Any = torch._C._set_grad_enabled  # `torch.no_grad` would cost a microsecond
# Whether the backward pass that runs keeps its graph.
keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph
Contexts = Callable[[], AbstractContextManager[Any]]
_MARKS = "recompute", "ac_graph_id"
_numbers = itertools.count()
_this_thread = threading.local()


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


class RepeatedMode(OperatorMode):  # type: ignore[no-untyped-call]
    """A mode that is entered again where a checkpoint computes again what it has computed under it."""

    def __init__(self) -> None:
        super().__init__()
        _adapt_checkpoints()

    def repeated(self) -> Contexts:
        """What gives, each time, the mode as it is now."""
        raise NotImplementedError


@contextmanager
def marking_checkpoints() -> Iterator[None]:
    """While this thread traces for AOTAutograd, checkpoints mark the nodes of their functions, and do nothing else.

    What is computed again is up to the partitioner, for which the marks are meant. They are
    `node.meta["recompute"]`, a `CheckpointPolicy`, and `node.meta["ac_graph_id"]`, the number of the checkpoint.
    """
    _adapt_checkpoints()
    before = getattr(_this_thread, "marks", False)
    _this_thread.marks = True
    try:
        yield
    finally:
        _this_thread.marks = before


@functools.cache
def _adapt_checkpoints() -> None:
    """Once for a process. Outside of traces and such modes, checkpoints are torch's own."""
    module: Any = torch.utils.checkpoint
    # torch 2.13 has only the second, which calls the first in newer ones.
    names = ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")
    name = next(name for name in names if hasattr(module, name))
    setattr(module, name, _adapted(getattr(module, name)))


def _adapted(original: Callable[..., Iterator[None]]) -> Callable[..., Iterator[None]]:
    """The generator around a checkpoint's function: it stops where that has to run."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def generator(*args: Any, **kwargs: Any) -> Iterator[None]:
        is_marking = getattr(_this_thread, "marks", False)
        modes = [mode for mode in dispatch_modes() if isinstance(mode, RepeatedMode)]
        if not is_marking and not modes:
            return original(*args, **kwargs)
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        values = given.arguments
        if is_marking:
            return _marking(values["context_fn"])
        again = [mode.repeated() for mode in modes]
        if values["context_fn"] is noop_context_fn:
            values["fn"] = _under(again, values["fn"])
        else:
            values["context_fn"] = _below(again, values["context_fn"])
        return original(*given.args, **given.kwargs)

    return generator


def _marking(context_fn: Callable[[], tuple[Any, Any]]) -> Iterator[None]:
    """All nodes of one checkpoint get its number, and its policy's answers; without a policy, all are recomputed."""
    if not torch.is_grad_enabled():
        yield
        return
    forward, _ = context_fn()
    before = {key: fx_traceback.current_meta.get(key) for key in _MARKS}
    outer = before["ac_graph_id"]  # torch saves what one checkpoint hands to the next; one inside is none of those
    number = next(_numbers) if outer is None else outer
    fx_traceback.current_meta.update(recompute=CheckpointPolicy.PREFER_RECOMPUTE, ac_graph_id=number)
    if hasattr(forward, "ac_graph_id"):  # since torch 2.13, such a mode writes it itself
        forward.ac_graph_id = number
    try:
        with forward:
            yield
    finally:
        for key, value in before.items():
            fx_traceback.current_meta.pop(key, None)
            if value is not None:
                fx_traceback.current_meta[key] = value


def _under(again: Sequence[Contexts], fn: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for context in again:
                stack.enter_context(context())
            return fn(*args, **kwargs)

    return run


def _below(
    again: Sequence[Contexts], context_fn: Callable[[], tuple[Any, Any]]
) -> Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]:
    """A policy's mode for recomputing comes above, as that for forward does: it has to see the same operators."""

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        forward, recompute = context_fn()
        return forward, _Stacked([*again, lambda: recompute])

    return contexts


class _Stacked:
    """Several contexts as one, which can be entered again, as for a backward pass that retains its graph."""

    def __init__(self, contexts: Sequence[Contexts]) -> None:
        self._contexts = contexts
        self._entered: list[ExitStack] = []

    def __enter__(self) -> None:
        with ExitStack() as stack:
            for context in self._contexts:
                stack.enter_context(context())
            self._entered.append(stack.pop_all())

    def __exit__(self, *error: Any) -> bool | None:
        return self._entered.pop().__exit__(*error)
