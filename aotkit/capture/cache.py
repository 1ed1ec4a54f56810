"""Where compiled entries are kept and found again: by everything but their tensors, then by those."""

from typing import Any

from torch import Tensor

from aotkit.capture.entry import Entry, Failure
from aotkit.capture.guards import Guard
from aotkit.capture.sizes import OpenSizes, SizesSeen
from aotkit.errors import RecompilationWarning
from aotkit.runtime import warn_user

# An entry holds compiled code, and graphs for inspection.
MOST_ENTRIES = 256

Found = tuple[Entry | Failure, list[Tensor]]


class Family:
    """Entries that share a guard, and differ in the tensors that they are valid for.

    Those of fixed sizes come first, as they are the faster ones; among these, and among the others, the newest.

    Attributes:
        last: the one to try first: what was used last, of fixed sizes if there are such.
    """

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.sizes = SizesSeen()
        self.entries: tuple[Entry | Failure, ...] = ()
        self.last: Entry | Failure

    def search(self, tensors: list[Tensor]) -> Entry | Failure | None:
        """The entry that is valid for these tensors."""
        for entry in self.entries:
            if entry.accepts(*tensors):
                if self.last.is_open or not entry.is_open:
                    self.last = entry
                return entry
        return None

    def add(self, entry: Entry | Failure) -> None:
        self.entries = tuple(sorted((entry, *self.entries), key=lambda entry: entry.is_open))
        self.last = self.entries[0] if entry.is_open else entry

    def drop(self) -> None:
        """Forget the oldest, of those of fixed sizes if there are such."""
        fixed = [entry for entry in self.entries if not entry.is_open]
        oldest = (fixed or self.entries)[-1]
        self.entries = tuple(entry for entry in self.entries if entry is not oldest)
        if self.last is oldest and self.entries:
            self.last = self.entries[0]


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

    def changed_sizes(self, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> OpenSizes | None:
        """The sizes that a compilation for such a call, with these flat inputs, should leave open; None: none."""
        family = self._family(args, kwargs, tensors)
        return None if family is None else family.sizes.changed(tensors)

    def add(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], guard: Guard, tensors: list[Tensor],
        entry: Entry | Failure, asked: OpenSizes | None,
    ) -> None:  # fmt: skip
        """Keep an entry for calls like this one.

        Args:
            tensors: its flat inputs.
            asked: which sizes `changed_sizes` wanted open.
        """
        family = self._family(args, kwargs, tensors)
        is_new = family is None
        family = family or Family(guard)
        family.add(entry)
        family.sizes.add(tensors, asked, is_open=entry.is_open)
        if is_new:  # it has an entry, and may be found now
            self._families = family, *self._families
        if len(self) > MOST_ENTRIES:
            self._drop()

    def _family(self, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> Family | None:
        """What a call belongs to whose flat inputs are these."""
        for family in self._families:
            found = family.guard(args, kwargs)
            if found is not None and list(map(id, found)) == list(map(id, tensors)):
                return family
        return None

    def _drop(self) -> None:
        oldest = self._families[-1]
        oldest.drop()
        if not oldest.entries:
            self._families = self._families[:-1]
        if not self._warned:
            self._warned = True
            warn_user(
                f"{self._name!r} has been compiled for {MOST_ENTRIES} kinds of inputs, as many as are kept: from now "
                "on, each new one takes the place of an old one. Pass what changes as a tensor; leave sizes open with "
                "dynamic=True.",
                RecompilationWarning,
            )
