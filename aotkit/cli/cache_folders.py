"""Where compilers keep what they compiled."""

from pathlib import Path

from aotkit.torch_private import native
from aotkit.torch_private.inductor import cache_folder, triton_cache_folder


def cache_folders() -> dict[str, Path]:
    """Whose folder -> where it is, or would be.

    Raises:
        OSError: Inductor's cannot be made.
    """
    return {"aotkit": native.cache_folder(), "inductor": cache_folder(), "triton": triton_cache_folder()}
