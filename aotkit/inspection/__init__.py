"""See what a compilation did: graphs as text, Markdown, HTML and data, saved memory, recomputation, source lines."""

from aotkit.inspection.data import as_json
from aotkit.inspection.kernels import kernels_html, kernels_json, kernels_text, plain_page
from aotkit.inspection.memory import Memory, Span, bytes_alive, memories
from aotkit.inspection.nodes import (
    bytes_moved,
    is_operation,
    is_symbolic,
    operator_name,
    output_nodes,
    packet_name,
    producer,
    size_hint,
    tensors_of,
)
from aotkit.inspection.saved import (
    SavedValue,
    kept_as_copies,
    recomputation_costs,
    recomputed,
    recomputed_views,
    saved_bytes,
    saved_values,
)
from aotkit.inspection.source import credit_backward, recording_source, source_line, user_line
from aotkit.inspection.text import render_html, render_markdown, render_text
from aotkit.inspection.traffic import looks_up_in, traffic
from aotkit.view import Cost, SourceLine

__all__ = [
    "Cost", "Memory", "SavedValue", "SourceLine", "Span", "as_json", "bytes_alive", "bytes_moved", "credit_backward",
    "is_operation", "is_symbolic", "kept_as_copies", "kernels_html", "kernels_json", "kernels_text", "looks_up_in",
    "memories", "operator_name", "output_nodes", "packet_name", "plain_page", "producer", "recomputation_costs",
    "recomputed", "recomputed_views", "recording_source", "render_html", "render_markdown", "render_text",
    "saved_bytes", "saved_values", "size_hint", "source_line", "tensors_of", "traffic", "user_line",
]  # fmt: skip
