"""Compile PyTorch training functions ahead of time, with backends and partitioners chosen by name.

`api.py` lists the names. It is imported when the first of them is asked for, since that takes seconds, which
`aotkit --help` should not.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from aotkit.api import *  # noqa: F403
else:
    # What takes another second to import.
    _LATE = {
        "autotune": "aotkit.tuning", "bench": "aotkit.benchmark", "frontier": "aotkit.benchmark.frontier",
        **dict.fromkeys(("FusionConfig", "FusionReport", "fuse", "fusion_report", "unfuse"), "aotkit.fusing"),
    }  # fmt: skip

    def __getattr__(name: str) -> Any:
        if importlib.util.find_spec(f"aotkit.{name}") is not None:
            return importlib.import_module(f"aotkit.{name}")
        api = importlib.import_module("aotkit.api")
        if name != "__all__" and name not in api.__all__:
            raise AttributeError(f"module 'aotkit' has no attribute {name!r}")
        globals()[name] = getattr(importlib.import_module(_LATE[name]) if name in _LATE else api, name)
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *importlib.import_module("aotkit.api").__all__})
