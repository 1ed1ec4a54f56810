"""See what a compilation did: the graphs as text, Markdown and HTML, saved memory, recomputation, source lines."""

from aotkit.inspection.costs import Cost, recomputation_costs
from aotkit.inspection.markup import render_html, render_markdown
from aotkit.inspection.saved import (
    SavedValue,
    recomputed,
    recomputed_views,
    saved_bytes,
    saved_values,
)
from aotkit.inspection.source import SourceLine, credit_backward, recording_source, source_line, user_line
from aotkit.inspection.text import render_text

__all__ = [
    "Cost",
    "SavedValue",
    "SourceLine",
    "credit_backward",
    "recomputation_costs",
    "recomputed",
    "recomputed_views",
    "recording_source",
    "render_html",
    "render_markdown",
    "render_text",
    "saved_bytes",
    "saved_values",
    "source_line",
    "user_line",
]
