"""Which sizes change from one compilation of a function to the next: further ones leave those open."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from torch import Size, Tensor

from aotkit.torch_private.tensors import tensor_kind

# Fixed sizes make the fastest kernels, and what is compiled for them outlives the process: an epoch has a batch of
# another size at its end, and no more than these two.
ENOUGH = 2

OpenSizes = Sequence[Sequence[bool]]  # for each tensor, and each of its dimensions


@dataclass
class _Seen:
    """Compilations for tensors that differ in nothing but sizes and strides.

    Attributes:
        first: sizes of the first.
        changed: those that have been others since.
        count: how many compilations for fixed sizes there were.
        are_fixed: whether the function has turned out not to go with open sizes.
    """

    first: Sequence[Size]
    changed: OpenSizes
    count: int = 0
    are_fixed: bool = False


class SizesSeen:
    """Sizes that a function was compiled for, where everything but its tensors was alike."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, _Seen] = {}

    def changed(self, tensors: Sequence[Tensor]) -> OpenSizes | None:
        """The sizes to leave open in a compilation for these tensors; None: all are fixed."""
        seen = self._seen.get(_kinds(tensors))
        if seen is None or seen.are_fixed or seen.count < ENOUGH:
            return None
        changed = _changed(seen, tensors)
        return changed if any(map(any, changed)) else None

    def add(self, tensors: Sequence[Tensor], asked: OpenSizes | None, *, is_open: bool) -> None:
        """Remember one compilation.

        Args:
            asked: the sizes that it was to leave open.
            is_open: whether it did.
        """
        seen = self._seen.setdefault(
            _kinds(tensors), _Seen([t.shape for t in tensors], [[False] * t.dim() for t in tensors])
        )
        seen.changed = _changed(seen, tensors)
        seen.count += not is_open
        seen.are_fixed |= asked is not None and not is_open


def _kinds(tensors: Sequence[Tensor]) -> Hashable:
    return tuple(map(tensor_kind, tensors))


def _changed(seen: _Seen, tensors: Sequence[Tensor]) -> OpenSizes:
    rows = zip(seen.changed, seen.first, tensors, strict=True)
    return [[c or n != m for c, n, m in zip(row, first, t.shape, strict=True)] for row, first, t in rows]
