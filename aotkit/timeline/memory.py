"""Peaks of memory, as the system and torch count them."""

import sys
from dataclasses import dataclass

import torch

# `ru_maxrss` counts bytes on macOS, and KiB elsewhere (getrusage(2)).
_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True)
class Peaks:
    """The highest so far.

    Attributes:
        process: bytes of this process that were in memory; None where the system does not tell.
        device: bytes that torch had allocated on the current GPU; None without one, or before its first use.
    """

    process: int | None
    device: int | None

    @classmethod
    def now(cls) -> "Peaks":
        """Those of this moment."""
        is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return cls(_of_process(), torch.cuda.max_memory_allocated() if is_used else None)

    def risen(self) -> tuple[int | None, int | None]:
        """By how much both have risen since."""
        now = Peaks.now()
        return _difference(self.process, now.process), _difference(self.device or 0, now.device)


def _of_process() -> int | None:
    try:
        import resource
    except ImportError:  # on Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT


def _difference(before: int | None, now: int | None) -> int | None:
    return None if before is None or now is None else max(now - before, 0)
