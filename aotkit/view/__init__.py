"""`Graphs` as data, and the viewer that shows them in a notebook or a browser."""

from aotkit.view.model import SCHEMA, as_json
from aotkit.view.page import render_output, render_page

__all__ = ["SCHEMA", "as_json", "render_output", "render_page"]
