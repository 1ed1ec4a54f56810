"""Counts what kernels of the fuser get for their results."""

from aotkit.backends.fuser import launches


class Memory:
    """What kernels get for their results.

    Attributes:
        allocated: bytes of new memory.
        placed: how many results are in the memory of something else.
        on: whether they may be.
    """

    def __init__(self, monkeypatch):
        self.allocated = self.placed = 0
        self.on = True
        self._in_place, self._new = launches.in_place(), launches.empty_strided_on("cpu")
        monkeypatch.setattr(launches, "in_place", lambda: self._place)
        monkeypatch.setattr(launches, "empty_strided_on", lambda device: self._empty)

    def _place(self, *args):
        found = self._in_place(*args) if self.on else None
        self.placed += found is not None
        return found

    def _empty(self, size, strides, dtype):
        made = self._new(size, strides, dtype)
        self.allocated += made.nbytes
        return made.fill_(float("nan")) if dtype.is_floating_point else made

    def of(self, fn):
        """What a function returns, and how much is allocated meanwhile."""
        before = self.allocated
        return fn(), self.allocated - before
