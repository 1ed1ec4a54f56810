"""Compile PyTorch training functions ahead of time, with backends and partitioners chosen by name.

`public.py` lists the names. It is imported when the first of them is asked for, since that takes seconds, which
`aotkit --help` should not.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from aotkit.public import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        if importlib.util.find_spec(f"aotkit.{name}") is not None:
            return importlib.import_module(f"aotkit.{name}")
        public = importlib.import_module("aotkit.public")
        if name != "__all__" and name not in public.__all__:
            raise AttributeError(f"module 'aotkit' has no attribute {name!r}")
        globals()[name] = getattr(public, name)
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *importlib.import_module("aotkit.public").__all__})
