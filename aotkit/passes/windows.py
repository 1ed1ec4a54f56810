"""Which pixel of an image is the nearest when it is resized."""

from ctypes import c_float
from typing import Any


def nearest_step(size: Any, before: Any, scale: float | None) -> float:
    """How far two neighbours are apart in the image before, in the precision in which ATen computes that."""
    return c_float(1 / scale if scale else before / size).value


def has_equal_windows(size: Any, before: Any, scale: float | None) -> bool:
    """Whether each pixel is the nearest of equally many; False for open sizes."""
    if not isinstance(size, int) or not isinstance(before, int) or size % before:
        return False
    step, times = nearest_step(size, before, scale), size // before
    return all(int(c_float(i * step).value) == i // times for i in range(size))
