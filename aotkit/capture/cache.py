"""Where compiled entries are kept and found again: by everything but their tensors, then by those."""

from typing import Any

from torch import Tensor

from aotkit.capture.entry import Entry, Failure
from aotkit.capture.guards import Guard
from aotkit.errors import RecompilationWarning
from aotkit.runtime import warn_user

# An entry holds compiled code, and graphs for inspection.
MOST_ENTRIES = 256

Found = tuple[Entry | Failure, list[Tensor]]


class Family:
    """Entries that share a guard, and differ in the tensors that they are valid for."""

    def __init__(self, guard: Guard, entry: Entry | Failure) -> None:
        self.guard = guard
        self.entries: tuple[Entry | Failure, ...] = (entry,)
        self.last = entry

    def search(self, tensors: list[Tensor]) -> Entry | Failure | None:
        """The entry that is valid for these tensors."""
        for entry in self.entries:
            if entry.accepts(*tensors):
                self.last = entry
                return entry
        return None


class Entries:
    """All entries of one function, the one used last first; it drops the oldest beyond `MOST_ENTRIES`.

    Threads read it while one of them adds to it: its tuples are replaced, never changed.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._families: tuple[Family, ...] = ()
        self._warned = False

    def __len__(self) -> int:
        return sum(len(family.entries) for family in self._families)

    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Found | None:
        """A valid entry for a call, and its flat inputs."""
        for family in self._families:
            if (tensors := family.guard(args, kwargs)) is None:
                continue
            entry = family.last
            if not entry.accepts(*tensors):
                if (other := family.search(tensors)) is None:
                    continue
                entry = other
            if family is not self._families[0]:
                self._families = family, *(other for other in self._families if other is not family)
            return entry, tensors
        return None

    def add(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], guard: Guard, tensors: list[Tensor], entry: Entry | Failure
    ) -> None:
        """Keep an entry for calls like this one.

        Args:
            tensors: its flat inputs.
        """
        for family in self._families:
            found = family.guard(args, kwargs)
            if found is not None and list(map(id, found)) == list(map(id, tensors)):
                family.entries, family.last = (entry, *family.entries), entry
                break
        else:
            self._families = Family(guard, entry), *self._families
        if len(self) > MOST_ENTRIES:
            self._drop()

    def _drop(self) -> None:
        oldest = self._families[-1]
        oldest.entries = oldest.entries[:-1]
        if not oldest.entries:
            self._families = self._families[:-1]
        elif oldest.last not in oldest.entries:
            oldest.last = oldest.entries[0]
        if not self._warned:
            self._warned = True
            warn_user(
                f"{self._name!r} has been compiled for {MOST_ENTRIES} kinds of inputs, as many as are kept: from now "
                "on, each new one takes the place of an old one. Pass what changes as a tensor; leave sizes open with "
                "dynamic=True.",
                RecompilationWarning,
            )
