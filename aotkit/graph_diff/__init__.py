"""What differs between two `Graphs`: two partitions, two backends, two versions of torch."""

from aotkit.graph_diff.compare import diff
from aotkit.graph_diff.records import Fused, Fusion, Operation, Output, Pair, Saved
from aotkit.graph_diff.result import GraphDiff

__all__ = ["Fused", "Fusion", "GraphDiff", "Operation", "Output", "Pair", "Saved", "diff"]
