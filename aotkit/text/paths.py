"""Paths of source files."""

import os


def is_installed(filename: str) -> bool:
    """Whether this source file is an installed package's, which its users did not write."""
    return not {"site-packages", "dist-packages"}.isdisjoint(filename.split(os.sep))
