"""`Graphs` as data, and the viewer that shows them in a notebook or a browser."""

from aotkit.view.model import SCHEMA, as_json

__all__ = ["SCHEMA", "as_json"]
