"""See what a compilation did: graphs as text, Markdown, HTML and data, saved memory, recomputation, source lines."""

from aotkit.inspection.graphs import Graphs
from aotkit.inspection.kept import graphs_data, graphs_of
from aotkit.inspection.kernels import kernels_html, kernels_json, kernels_text, plain_page
from aotkit.inspection.memory import Memory, Span, bytes_alive, memories
from aotkit.inspection.nodes import bytes_moved
from aotkit.inspection.saved import (
    INSTEAD,
    SavedValue,
    checkpointed,
    recomputation_costs,
    recomputed,
    recomputed_views,
    saved_bytes,
    saved_values,
)
from aotkit.inspection.text import render_html, render_markdown, render_text
from aotkit.inspection.traffic import looks_up_in, traffic
from aotkit.passes import source_line
from aotkit.text import SourceLine
from aotkit.view import Cost

__all__ = [
    "INSTEAD", "Cost", "Graphs", "Memory", "SavedValue", "SourceLine", "Span", "bytes_alive", "bytes_moved",
    "checkpointed", "graphs_data", "graphs_of",
    "kernels_html", "kernels_json", "kernels_text", "looks_up_in", "memories", "plain_page", "recomputation_costs",
    "recomputed", "recomputed_views", "render_html", "render_markdown", "render_text", "saved_bytes", "saved_values",
    "source_line", "traffic",
]  # fmt: skip
