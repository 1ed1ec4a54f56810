"""What a budget may be: bytes, bytes with a unit, or a fraction."""

import re
from dataclasses import dataclass

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "kB": 10**3, "MB": 10**6, "GB": 10**9}
MEANING = "Use bytes (an integer), bytes with a unit ('2GiB', '500MB'), or a fraction (a float from 0.0 to 1.0)."


@dataclass(frozen=True)
class Limit:
    """One of the two.

    Attributes:
        bytes: the limit itself.
        fraction: of what there would be without one.
    """

    bytes: int | None = None
    fraction: float | None = None

    def of(self, whole: int) -> int:
        """In bytes."""
        return self.bytes if self.bytes is not None else int((self.fraction or 0.0) * whole)


def parse_limit(limit: int | float | str) -> Limit:
    """What the user gave.

    Raises:
        ValueError: it is no limit.
    """
    if isinstance(limit, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", limit)
        if found and found[2] in UNITS:
            return Limit(bytes=int(float(found[1]) * UNITS[found[2]]))
    elif isinstance(limit, float) and 0 <= limit <= 1:
        return Limit(fraction=limit)
    elif isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0:
        return Limit(bytes=limit)
    raise ValueError(f"{limit!r} is no budget. {MEANING}")
