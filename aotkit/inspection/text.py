"""`Graphs` as plain text, for a terminal or a bug report."""

from itertools import zip_longest
from typing import TYPE_CHECKING

import torch

from aotkit.inspection.costs import recomputation_costs, total_cost
from aotkit.inspection.divided import region_lines
from aotkit.inspection.lines import Line, backward_lines, forward_lines, input_labels, value_label
from aotkit.inspection.nodes import bytes_name, is_operation, size_hint, tensor_type_name
from aotkit.inspection.saved import SavedValue, recomputed_views, saved_values, storage_bytes
from aotkit.inspection.terminal import Paint, fitted, paint_of, terminal_width, wrapped
from aotkit.text import printable

if TYPE_CHECKING:
    from aotkit.graphs import Graphs

_GAP = " | "
_NARROWEST_COLUMN = 58
COLUMNS = ("name", "type", "bytes", "operator", "why", "source")


def render_text(graphs: "Graphs", width: int | None = None, colours: bool | None = None) -> str:
    """The whole compilation as text: header, both graphs, the table of saved values, totals.

    Forward and backward stand side by side if `width` leaves each 58 characters, else below each other. `width`
    defaults to the terminal's, at least 60, and to 160 if the output is not a terminal. `colours` are the escape
    sequences of a terminal; by default where the output is one, unless the variable NO_COLOR is set.
    """
    width, paint = terminal_width() if width is None else width, paint_of(colours)
    heading, *rest = _paragraph([title(graphs), operation_count(graphs)], width).split("\n")
    sections = ["\n".join([paint(heading, "heading"), *rest]), _listings(graphs, width, paint)]
    if graphs.backward is not None:
        sections += [_table(graphs, width, paint), _paragraph(totals(graphs), width)]
    if graphs.regions:
        sections.append(_paragraph(region_lines(graphs), width))
    return "\n\n".join(sections)


def title(graphs: "Graphs") -> str:
    """`f: backend nop, partition min_cut; s0 = 8`, with the values that symbolic sizes had while tracing."""
    text = f"{printable(graphs.name)}: backend {printable(graphs.backend)}"
    if graphs.backward is not None:
        text += f", partition {printable(graphs.partition)}"
    sizes = _symbols(graphs)
    return text + (f"; traced with {', '.join(sizes)}" if sizes else "")


def table_rows(graphs: "Graphs") -> list[tuple[str, ...]]:
    """The saved values, largest storage first, as the texts of `COLUMNS`; a storage's bytes stand on its first row."""
    names = input_labels(graphs)
    rows: list[tuple[str, ...]] = []
    seen: set[str] = set()
    for value in sorted(saved_values(graphs), key=lambda v: (v.kind != "activation", -(v.nbytes or 0), v.storage)):
        size = "(shared)" if value.storage in seen else "" if value.dtype is None else bytes_name(value.nbytes)
        seen.add(value.storage)
        shared = value.kind == "activation" and value.storage != value.name
        rows.append(
            (
                value.name,
                value.kind if value.dtype is None else tensor_type_name(value.dtype, value.shape),
                size,
                f"{value.operator} of {value.storage}" if shared else value.operator,
                value.reason or value_label(value, names),
                f"{value.source}  {value.source.code}" if value.source else "",
            )
        )
    return rows


def totals(graphs: "Graphs") -> list[str]:
    """What backward costs, as sentences: bytes of saved activations, what is alive anyway, what is recomputed."""
    values = saved_values(graphs)
    activations = [value for value in values if value.kind == "activation"]
    alive = [value for value in values if value.dtype is not None and value.kind != "activation"]
    again, views = recomputation_costs(graphs), recomputed_views(graphs)
    cost = f"; {total_cost(again.values())}" if again else ""
    lines = [
        f"saved activations: {_total(activations)}",
        f"inputs, outputs and their views (alive anyway): {_total(alive)}",
        f"recomputed: {_count(len(again), 'operation')}{_names([node.name for node in again])}{cost}",
    ]
    if views:
        lines.append(f"views taken again: {len(views)}" + _names([node.name for node in views]))
    return lines


def operation_count(graphs: "Graphs") -> str:
    """`forward 5 operations, backward 4 operations`."""
    parts = {"forward": graphs.forward, "backward": graphs.backward}
    return ", ".join(
        f"{name} {_count(sum(map(is_operation, gm.graph.nodes)), 'operation')}"
        for name, gm in parts.items()
        if gm is not None
    )


def _total(values: list[SavedValue]) -> str:
    unknown = sum(value.nbytes is None for value in values)
    text = f"{bytes_name(storage_bytes(values))} in {_count(len({v.storage for v in values}), 'storage')}"
    return text + f" ({_count(len(values), 'value')}{f', {unknown} of unknown size' if unknown else ''})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _names(names: list[str]) -> str:
    return f": {', '.join(names)}" if names else ""


def _symbols(graphs: "Graphs") -> list[str]:
    sizes: dict[str, int | None] = {}
    for node in graphs.forward.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else [value]:
            if isinstance(size, torch.SymInt) and str(size).isidentifier():
                sizes[str(size)] = size_hint(size)
    return [f"{name} = {value}" for name, value in sizes.items()]


def _listings(graphs: "Graphs", width: int, paint: Paint) -> str:
    forward, backward = forward_lines(graphs), backward_lines(graphs)
    column = (width - len(_GAP)) // 2
    if not backward or column < _NARROWEST_COLUMN:
        listings = [_listing(lines, width) for lines in (forward, backward) if lines]
        return "\n\n".join("\n".join(paint(line.text, line.role) for line in lines) for lines in listings)
    rows = zip_longest(_listing(forward, column), _listing(backward, column), fillvalue=Line(""))
    return "\n".join(
        f"{paint(f'{left.text:{column}}', left.role)}{_GAP}{paint(right.text, right.role)}".rstrip()
        for left, right in rows
    )


def _listing(lines: list[Line], width: int) -> list[Line]:
    """The lines as they are printed: each in one or more, of the same role."""
    heading, *body = lines
    parts = [Line(part, line.role) for line in body for part in wrapped("  " + line.text, width).split("\n")]
    return [Line(heading.text, "heading"), *parts]


def _paragraph(lines: list[str], width: int) -> str:
    return "\n".join(wrapped(line, width) for line in lines)


def _table(graphs: "Graphs", width: int, paint: Paint) -> str:
    rows = table_rows(graphs)
    if not rows:
        return paint("saved for backward: nothing", "heading")
    head, *body = fitted([COLUMNS, *rows], width, right=[COLUMNS.index("bytes")])
    headings = [paint(line, "heading") for line in ["saved for backward", *head]]
    return "\n".join([*headings, *(line for row in body for line in row)])
