"""Time that a check or a search may take."""

import time
from collections.abc import Callable


class Budget:
    """Seconds that may be used from now on.

    Args:
        seconds: how many; None for no limit.
        clock: tells the time, in seconds; it never goes back.
    """

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._start = clock()

    def part(self, seconds: float) -> "Budget":
        """So many seconds of it at most, from now on."""
        return Budget(min(seconds, self.left), self._clock)

    def restart(self) -> None:
        """Count from now on."""
        self._start = self._clock()

    def use_up(self) -> None:
        """Leave nothing of it: something else has come to an end."""
        self.seconds = 0.0

    @property
    def left(self) -> float:
        """Seconds; below 0 when it is used up."""
        return float("inf") if self.seconds is None else self._start + self.seconds - self._clock()

    @property
    def is_used_up(self) -> bool:
        return self.left <= 0
