"""Time that a check or a search may take."""

import time


class Budget:
    """Seconds that may be used from now on; None for no limit."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = float("inf") if seconds is None else seconds
        self._start = time.monotonic()

    def part(self, seconds: float) -> "Budget":
        """So many seconds of it at most, from now on."""
        return Budget(min(seconds, self.left))

    def restart(self) -> None:
        """Count from now on."""
        self._start = time.monotonic()

    def use_up(self) -> None:
        """Leave nothing of it: something else has come to an end."""
        self._seconds = 0.0

    @property
    def left(self) -> float:
        """Seconds; below 0 when it is used up."""
        return self._start + self._seconds - time.monotonic()

    @property
    def is_used_up(self) -> bool:
        return self.left <= 0
