"""Text without torch: tables, and names and paths in it."""

from aotkit.text.one_line import printable
from aotkit.text.paths import is_installed
from aotkit.text.tables import aligned, grouped, markdown

__all__ = [
    "aligned",
    "grouped",
    "is_installed",
    "markdown",
    "printable",
]
