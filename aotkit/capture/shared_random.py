"""Run a function with replacements for its random operators, also where `torch.utils.checkpoint` runs it again."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch.utils.checkpoint

from aotkit.random import Draws, replacement
from aotkit.torch_private.dispatch import TorchDispatchMode, dispatch_modes, wrap_others


class SharedRandom(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Random operators draw from `draws`; those without a replacement from torch's generators."""

    def __init__(self, draws: Draws) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.draws = draws
        _correct_checkpoints()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        # Ranks draw numbers of their own for a DTensor that is sharded, which torch sees to.
        replace = None if wrap_others(types) else replacement(func, args, kwargs)
        if replace is not None:
            result = replace(self.draws, *args, **kwargs)
            if result is not NotImplemented:
                return result
        return func(*args, **kwargs)


@functools.cache
def _correct_checkpoints() -> None:
    """What a checkpoint recomputes in the backward pass draws what it drew before.

    torch puts its generators back for that; here the number of draws is put back. It runs outside of the mode.
    """
    checkpoint: Any = torch.utils.checkpoint
    # torch 2.13 has only the second, which calls the first in newer ones. Both take the function first.
    names = ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")
    name = next(name for name in names if hasattr(checkpoint, name))
    original = getattr(checkpoint, name)

    @functools.wraps(original)
    def generator(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        active = [mode for mode in dispatch_modes() if isinstance(mode, SharedRandom)]
        return original(_repeated(fn, active[-1].draws) if active else fn, *args, **kwargs)

    setattr(checkpoint, name, generator)


def _repeated(fn: Callable[..., Any], draws: Draws) -> Callable[..., Any]:
    seed, used = draws.seed, draws.used

    def again(*args: Any, **kwargs: Any) -> Any:
        with SharedRandom(Draws(seed, used)):
            return fn(*args, **kwargs)

    return again
