"""`Graphs` as plain text, for a terminal or a bug report, and as Markdown and HTML, for notebooks.

Function names and source lines are the user's text: nothing in them may act as markup.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection
from html import escape
from itertools import zip_longest
from typing import TYPE_CHECKING

import torch
from torch.fx import Node

from aotkit.inspection.lines import Line, backward_lines, forward_lines, input_labels, value_label
from aotkit.inspection.nodes import tensor_type_name
from aotkit.inspection.saved import (
    INSTEAD,
    SavedValue,
    checkpointed,
    recomputation_costs,
    recomputed_views,
    saved_values,
    storage_bytes,
)
from aotkit.passes import Regions, is_operation, placeholders, size_hint
from aotkit.text import (
    Paint,
    bytes_name,
    counted,
    fitted,
    html,
    markdown,
    markdown_text,
    paint_of,
    printable,
    terminal_width,
    wrapped,
)
from aotkit.view import total_cost

if TYPE_CHECKING:
    from aotkit.inspection.graphs import Graphs

_GAP = " | "
_NARROWEST_COLUMN = 58
COLUMNS = ("name", "type", "bytes", "operator", "why", "source")
RIGHT = (False, False, True)
# No colour without its counterpart: the fragment has to read well on light and on dark pages.
_PRE = "flex:1 1 30em;min-width:0;overflow-x:auto;margin:0;padding:.5em;border:1px solid rgba(128,128,128,.4)"
_STYLES = {"recomputed": "background:rgba(255,165,0,.3)", "source": "opacity:.65;font-style:italic"}


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
        sections.append(_table(graphs, width, paint))
    sections += [_paragraph(lines, width) for lines in (totals(graphs), region_lines(graphs)) if lines]
    return "\n\n".join(sections)


def render_markdown(graphs: "Graphs") -> str:
    """Markdown for GitHub and Jupyter: title, table of saved values, totals, both graphs as fenced text."""
    parts = [f"**{markdown_text(title(graphs))}**", markdown_text(operation_count(graphs))]
    rows = table_rows(graphs)
    if rows:
        parts.append(markdown([COLUMNS, *(tuple(map(markdown_text, row)) for row in rows)], RIGHT))
    for lines in filter(None, (totals(graphs), region_lines(graphs))):
        parts.append("\n".join(f"- {markdown_text(line.strip())}" for line in lines))
    parts += [_fence(lines) for lines in (forward_lines(graphs), backward_lines(graphs)) if lines]
    return "\n\n".join(parts) + "\n"


def render_html(graphs: "Graphs") -> str:
    """A self-contained HTML fragment without scripts: both graphs side by side, table of saved values, totals.

    Lines that backward recomputes have the class `aotkit-recomputed` and a tinted background.
    """
    listings = [lines for lines in (forward_lines(graphs), backward_lines(graphs)) if lines]
    parts = [f"<p><b>{escape(title(graphs))}</b><br>{escape(operation_count(graphs))}</p>"]
    columns = "".join(f'<pre style="{_PRE}">{"".join(map(_html_line, lines))}</pre>' for lines in listings)
    parts.append(f'<div style="display:flex;flex-wrap:wrap;gap:.5em">{columns}</div>')
    if graphs.backward is not None:
        parts.append(html([COLUMNS, *table_rows(graphs)], "white-space:nowrap", caption="saved for backward"))
    for lines in filter(None, (totals(graphs), region_lines(graphs))):
        parts.append("<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>")
    return f'<div class="aotkit-graphs">{"".join(parts)}</div>'


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
    if graphs.backward is None:
        return []
    values = saved_values(graphs)
    activations = [value for value in values if value.kind == "activation"]
    alive = [value for value in values if value.dtype is not None and value.kind != "activation"]
    again, views = recomputation_costs(graphs), recomputed_views(graphs)
    cost = f"; {total_cost(again.values())}" if again else ""
    lines = [
        f"saved activations: {_total(activations)}",
        f"inputs, outputs and their views (alive anyway): {_total(alive)}",
        f"recomputed: {counted(len(again), 'operation')}{_names(again)}{cost}",
    ]
    if marked := checkpointed(graphs):
        lines.append(f"of these, {counted(len(marked), 'operation')} for torch.utils.checkpoint: {INSTEAD}")
    return [*lines, f"views taken again: {len(views)}{_names(views)}"] if views else lines


def operation_count(graphs: "Graphs") -> str:
    """`forward 5 operations, backward 4 operations`."""
    parts = (("forward", graphs.forward), ("backward", graphs.backward))
    counts = [(name, sum(map(is_operation, gm.graph.nodes))) for name, gm in parts if gm is not None]
    return ", ".join(f"{name} {counted(number, 'operation')}" for name, number in counts)


def _total(values: list[SavedValue]) -> str:
    unknown = sum(value.nbytes is None for value in values)
    text = f"{bytes_name(storage_bytes(values))} in {counted(len({v.storage for v in values}), 'storage')}"
    return text + f" ({counted(len(values), 'value')}{f', {unknown} of unknown size' if unknown else ''})"


def _names(nodes: Collection[Node]) -> str:
    return f": {', '.join(node.name for node in nodes)}" if nodes else ""


def _symbols(graphs: "Graphs") -> list[str]:
    sizes: dict[str, int | None] = {}
    for node in placeholders(graphs.forward):
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
    head, *body = fitted([COLUMNS, *rows], width, RIGHT)
    headings = [paint(line, "heading") for line in ["saved for backward", *head]]
    return "\n".join([*headings, *(line for row in body for line in row)])


def region_lines(graphs: "Graphs") -> list[str]:
    """What "auto" was, what each backend has of each graph that is divided, and why the rest is in no region."""
    chosen = [printable(graphs.why_backend)] if graphs.why_backend else []
    return [*chosen, *(line for name, regions in graphs.regions.items() for line in _regions(name, regions))]


def _regions(name: str, divided: Regions) -> list[str]:
    sizes = {backend: [len(r.nodes) for r in divided.regions if r.backend == backend] for backend in divided.backends}
    parts = [f"{counted(len(s), 'region')} of {printable(backend)} ({_sizes(s)})" for backend, s in sizes.items() if s]
    lines = [f"regions of {name}: {', '.join(parts) or 'none'}; {counted(len(divided.outside), 'operation')} outside"]
    for region in divided.regions:
        if region.failure is not None:
            lines.append(
                f"  {printable(region.backend)} failed on {', '.join(region.nodes)}: {printable(region.failure)}"
            )
    nodes: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for node, reasons in divided.outside.items():
        nodes[reasons].append(node)
    for reasons, group in sorted(nodes.items(), key=lambda item: -len(item[1])):
        each = (f"{printable(b)}: {printable(reason)}" for b, reason in zip(divided.backends, reasons, strict=True))
        lines.append(f"  {'; '.join(each)}: {', '.join(group)}")
    return lines


def _sizes(sizes: list[int]) -> str:
    """`2 x 40 + 13 operations`."""
    texts = (str(size) if n == 1 else f"{n} x {size}" for size, n in sorted(Counter(sizes).items(), reverse=True))
    return f"{' + '.join(texts)} operation{'s' if sum(sizes) != 1 else ''}"


def _fence(lines: list[Line]) -> str:
    heading, *body = [line.text for line in lines]
    text = "\n".join([heading, *("  " + line for line in body)])
    # A fence ends at a run of backticks as long as its own.
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}"


def _html_line(line: Line) -> str:
    text = escape(line.text)
    if line.role in _STYLES:
        text = f'<span class="aotkit-{line.role}" style="{_STYLES[line.role]}">{text}</span>'
    return text + "\n"
