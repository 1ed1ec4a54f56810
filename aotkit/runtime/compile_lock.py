"""One thread compiles at a time."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class CompileLock:
    """Tracing swaps tensors inside the user's objects and patches torch's global configuration: one thread at a time.

    A thread that the holder waits for must not wait for the holder: there it raises.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._thread = threading.local()

    def __enter__(self) -> None:
        if getattr(self._thread, "is_awaited", False):
            raise RuntimeError("A function would have to be compiled in a thread that the check of another waits for.")
        self._lock.acquire()
        self._thread.holds = getattr(self._thread, "holds", 0) + 1

    def __exit__(self, *error: object) -> None:
        self._thread.holds -= 1
        self._lock.release()

    def is_held_here(self) -> bool:
        """Whether this thread is compiling something."""
        return getattr(self._thread, "holds", 0) > 0

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """For a thread that the holder waits for."""
        self._thread.is_awaited = True
        yield


COMPILE_LOCK = CompileLock()
