"""The values that operators read and compute, by what is in them."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from aotkit.torch_private.dispatch import TorchDispatchMode, tree_leaves


class Computed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps an identity of each tensor that an operator reads or returns, in forward and backward passes.

    What is written in parts is known whole only when it is read.

    Attributes:
        seen: the identities.
    """

    def __init__(self, identity: Callable[[Tensor], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._identity = identity
        self.seen: set[Any] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._see(args)
        result = func(*args, **kwargs or {})
        self._see(result)
        return result

    def _see(self, values: Any) -> None:
        self.seen.update(self._identity(value) for value in tree_leaves(values) if isinstance(value, Tensor))
