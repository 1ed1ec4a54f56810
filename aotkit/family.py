"""Where compiled entries are kept and found again: by what the function captures, then by the kinds of its inputs."""

from collections.abc import Hashable, Sequence
from typing import Any

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


class Families:
    """All entries of one function."""

    def __init__(self, dynamic: bool) -> None:
        self._dynamic = dynamic
        self._families: list[Family] = []

    def find(
        self, roots: Sequence[Any], key: Hashable, arguments: Sequence[Tensor]
    ) -> tuple[Entry | AotkitError, Sequence[Tensor]] | None:
        """A valid entry and its flat inputs.

        Args:
            roots: the function, and arguments that are objects.
            key: stands for everything else but tensors.
            arguments: the arguments that are tensors.
        """
        for family in self._families:
            captured = family.captures.fetch(roots)
            if captured is not None:
                tensors = [*arguments, *captured]
                if (entry := family.find(key, tensors)) is not None:
                    return entry, tensors
        return None

    def add(
        self,
        roots: Sequence[Any],
        key: Hashable,
        arguments: Sequence[Tensor],
        captures: Captures,
        captured: Sequence[Tensor],
        entry: Entry | AotkitError,
    ) -> None:
        """Keep an entry for calls like this one."""
        self._family(roots, captures, captured).add(key, [*arguments, *captured], entry)

    def _family(self, roots: Sequence[Any], captures: Captures, captured: Sequence[Tensor]) -> Family:
        for family in self._families:
            found = family.captures.fetch(roots)
            if found is not None and list(map(id, found)) == list(map(id, captured)):
                return family
        self._families.insert(0, Family(captures, self._dynamic))
        return self._families[0]
