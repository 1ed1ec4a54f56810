"""Where compilers keep what they compiled."""

from pathlib import Path

from torch._inductor.runtime import cache_dir_utils

from aotkit.aot import native


def cache_folders() -> dict[str, Path]:
    """Whose folder -> where it is, or would be.

    Raises:
        OSError: Inductor's cannot be made.
    """
    inductor = cache_dir_utils.cache_dir()
    triton = cache_dir_utils.triton_cache_dir(0)
    return {"aotkit": native.cache_folder(), "inductor": Path(inductor), "triton": Path(triton)}
