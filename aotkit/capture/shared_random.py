"""Run a function with replacements for its random operators, also where `torch.utils.checkpoint` runs it again."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from aotkit.random import Draws, replacement
from aotkit.torch_private.autograd import RepeatedMode
from aotkit.torch_private.dispatch import wrap_others


class SharedRandom(RepeatedMode):  # type: ignore[no-untyped-call]
    """Random operators draw from `draws`; those without a replacement from torch's generators."""

    def __init__(self, draws: Draws) -> None:
        super().__init__()
        self.draws = draws

    def repeated(self) -> Callable[[], AbstractContextManager[Any]]:
        """A checkpoint draws again what it drew: torch puts its generators back for that, here it is a number."""
        seed, used = self.draws.seed, self.draws.used
        return lambda: SharedRandom(Draws(seed, used))

    def operator(self, func: Any, types: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        # Ranks draw numbers of their own for a DTensor that is sharded, which torch sees to.
        replace = None if wrap_others(types) else replacement(func, args, kwargs)
        if replace is not None:
            result = replace(self.draws, *args, **kwargs)
            if result is not NotImplemented:
                return result
        return func(*args, **kwargs)
