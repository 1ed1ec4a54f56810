"""The data of `Graphs.json()`: what it is (`schema`), the viewer, formats of other programs, what differs between two.

Nothing of it needs torch.
"""

from aotkit.view.compare import compared
from aotkit.view.formats import model_explorer, render_dot, render_mermaid
from aotkit.view.page import render_output, render_page
from aotkit.view.records import Cost, total_cost
from aotkit.view.result import GraphDiff
from aotkit.view.schema import SCHEMA, read_graphs, require_graphs

__all__ = [
    "SCHEMA",
    "Cost",
    "GraphDiff",
    "compared",
    "model_explorer",
    "read_graphs",
    "render_dot",
    "render_mermaid",
    "render_output",
    "render_page",
    "require_graphs",
    "total_cost",
]
