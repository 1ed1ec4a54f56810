"""What backend "auto" stands for."""

import shutil


def default_backend() -> str:
    """What backend "auto" stands for here."""
    return "inductor" if cpp_compiler() else "nop"


def cpp_compiler() -> str | None:
    """Where there is a C++ compiler, or None."""
    return next(filter(None, map(shutil.which, ("c++", "g++", "clang++", "cl"))), None)
