"""Time and memory of compiled functions next to eager."""

from aotkit.benchmark.runs import bench
from aotkit.benchmark.table import BenchReport, Row
from aotkit.benchmark.timing import Samples, Spread, Step, interleave, speedup, spread

__all__ = ["BenchReport", "Row", "Samples", "Spread", "Step", "bench", "interleave", "speedup", "spread"]
