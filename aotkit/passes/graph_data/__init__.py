"""Graphs as plain data, for a process that does not trace and cut them again.

`targets` has what a graph may call, `values` what nodes take and what is noted of them, `graphs` puts them together.
"""

from aotkit.passes.graph_data.graphs import graph_data, graph_of, values_data, values_of
from aotkit.passes.graph_data.values import Tables

__all__ = ["Tables", "graph_data", "graph_of", "values_data", "values_of"]
