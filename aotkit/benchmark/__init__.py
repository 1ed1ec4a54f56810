"""Time and memory of compiled functions next to eager.

What is named here is imported when it is first asked for: `start.process` counts the time that importing aotkit takes.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aotkit.benchmark.runs import bench
    from aotkit.benchmark.table import BenchReport, Row
    from aotkit.benchmark.timing import Samples, Spread, Step, interleave, speedup, spread
else:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'aotkit.benchmark' has no attribute {name!r}")
        home = {"bench": "runs", "BenchReport": "table", "Row": "table"}.get(name, "timing")
        return getattr(importlib.import_module(f"aotkit.benchmark.{home}"), name)


__all__ = ["BenchReport", "Row", "Samples", "Spread", "Step", "bench", "interleave", "speedup", "spread"]
