"""Text without torch: tables, lines of a terminal, and the words, numbers and paths in them."""

from aotkit.text.tables import aligned, fitted, grouped, html, html_rows, markdown, markdown_text
from aotkit.text.terminal import Paint, paint_of, terminal_width, wrapped
from aotkit.text.words import (
    SourceLine,
    bytes_name,
    counted,
    flops_name,
    is_installed,
    listed,
    nearest,
    operators,
    printable,
    seconds_name,
    sum_known,
)

__all__ = [
    "Paint",
    "SourceLine",
    "aligned",
    "bytes_name",
    "counted",
    "fitted",
    "flops_name",
    "grouped",
    "html",
    "html_rows",
    "is_installed",
    "listed",
    "markdown",
    "markdown_text",
    "nearest",
    "operators",
    "paint_of",
    "printable",
    "seconds_name",
    "sum_known",
    "terminal_width",
    "wrapped",
]
