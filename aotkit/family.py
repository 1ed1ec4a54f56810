"""Entries that share one way of finding captured tensors, by the kinds of inputs that they are valid for."""

from collections.abc import Hashable, Sequence

from torch import Tensor

from aotkit import aot
from aotkit.captures import Captures
from aotkit.entry import Entry
from aotkit.errors import AotkitError


class Family:
    """The entries of one function for one structure of what it captures.

    An error in the place of an entry stands for a compilation that failed, so that the call runs eagerly.
    """

    def __init__(self, captures: Captures, dynamic: bool) -> None:
        self.captures = captures
        self._tensor_key = aot.dynamic_key if dynamic else aot.tensor_key
        self._entries: dict[Hashable, list[Entry | AotkitError]] = {}

    def find(self, key: Hashable, tensors: Sequence[Tensor]) -> Entry | AotkitError | None:
        for entry in self._entries.get(self._key(key, tensors), ()):
            if isinstance(entry, AotkitError) or entry.accepts(tensors):
                return entry
        return None

    def add(self, key: Hashable, tensors: Sequence[Tensor], entry: Entry | AotkitError) -> None:
        self._entries.setdefault(self._key(key, tensors), []).append(entry)

    def _key(self, key: Hashable, tensors: Sequence[Tensor]) -> Hashable:
        return key, tuple(map(self._tensor_key, tensors))
