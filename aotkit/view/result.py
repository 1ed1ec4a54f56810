"""What `aotkit.diff` returns, and what shows it. Nothing of the user's may act as markup."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from html import escape
from pathlib import Path
from typing import Any

from aotkit.text import aligned, html, markdown, markdown_text, terminal_width, wrapped
from aotkit.view.page import render_output, render_page
from aotkit.view.records import Fusion, Operation, Output, Pair, Saved
from aotkit.view.report import Row, headings, is_kept_alike, sections

SCHEMA = 1
# Of the text: characters of a line at the least, rows of a section and characters of a cell at the most.
LEAST_WIDTH, MOST_ROWS, MOST_CHARACTERS = 80, 20, 44


@dataclass(frozen=True, repr=False)
class GraphDiff:
    """What differs between two `Graphs`, A and B: print it, show it in a notebook, save it as a page.

    Attributes:
        a, b: the two, as `Graphs.json()` has them.
        totals: name -> numbers in A and in B: `saved_bytes`, `alive_bytes`, `recomputed`, `views_again`, `peak_bytes`
            as in `Graphs.json()`; `forward` and `backward`, numbers of operations without `getitem` and sizes.
        operators: name -> how often A and B have it, where that differs.
        saved: storages that either saves; also those that both save.
        recomputed: operations that backward repeats, and views that it takes again, in either; also in both.
        only: operations that one side has and the other has not, what is recomputed aside.
        moved: operations that one side has in forward and the other in backward.
        changed: operations with other arguments or another type, and those that read what is computed otherwise;
            inputs of another type.
        fusions: regions that are not the same.
        kernels: kernels that are not the same, where both sides know theirs and one of them has several operations.
        inputs: inputs of forward, and tangents, that only one side has.
        outputs: those that are not the same; saved values aside.
        values: "a" and "b" -> a number for each node. Nodes of equal numbers compute the same value, as far as can be
            told: equal operations, and those that `changed` lists.
    """

    a: Mapping[str, Any]
    b: Mapping[str, Any]
    totals: Mapping[str, tuple[int, int]]
    operators: Mapping[str, tuple[int, int]]
    saved: Sequence[Pair[Saved]]
    recomputed: Sequence[Pair[Operation]]
    only: Sequence[Pair[Operation]]
    moved: Sequence[Pair[Operation]]
    changed: Sequence[Pair[Operation]]
    fusions: Sequence[Fusion]
    kernels: Sequence[Fusion]
    inputs: Sequence[Pair[Operation]]
    outputs: Sequence[Output]
    values: Mapping[str, Sequence[int]]

    @property
    def identical(self) -> bool:
        """Whether both compute the same, save the same and fuse the same, whatever their nodes are called.

        Kernels count where both sides know theirs.
        Values of constant tensors are not in the data, nor are graphs inside of graphs: who holds equally many of a
        type passes.
        """
        both = all(pair.a and pair.b for pair in self.recomputed) and all(map(is_kept_alike, self.saved))
        same_totals = all(a == b for a, b in self.totals.values())
        found = (self.only, self.moved, self.changed, self.fusions, self.kernels, self.inputs, self.outputs)
        return both and same_totals and not any(found)

    def __str__(self) -> str:
        return _text(self)

    __repr__ = __str__

    def markdown(self) -> str:
        """Markdown for GitHub: tables."""
        return _markdown(self)

    def _repr_markdown_(self) -> str:
        return self.markdown()

    def json(self) -> dict[str, Any]:
        """The same as plain data, of schema 1: these attributes, who `a` and `b` are, and `identical`."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("a", "b")}
        plain = {k: dict(v) if isinstance(v, Mapping) else [asdict(one) for one in v] for k, v in found.items()}
        return {"schema": SCHEMA, "a": _identity(self.a), "b": _identity(self.b), "identical": self.identical, **plain}

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write one file that needs no network: what differs, next to both graphs, in which it is shown."""
        page = render_page(shown(self), f"{self.a['name']} | {self.b['name']}", kind="diff")
        Path(path).write_text(page, encoding="utf-8")

    def _repr_html_(self) -> str:
        return render_output(shown(self), _html(self), kind="diff")


def _identity(data: Mapping[str, Any]) -> dict[str, str]:
    return {key: data[key] for key in ("name", "backend", "partition", "torch")}


def _text(diff: GraphDiff) -> str:
    """What differs, section by section, of each the first 20 rows, as wide as the terminal."""
    lines = headings(diff)
    for section in sections(diff):
        lines += ["", section.title]
        rows = [] if section.folded else section.rows[:MOST_ROWS]
        if rows:
            cells = [tuple(map(_clipped, row)) for row in (section.columns, *(row.cells for row in rows))]
            lines += [f"  {line}" for line in aligned(cells)]
            if len(section.rows) > len(rows):
                lines.append(f"  and {len(section.rows) - len(rows)} more rows")
    width = terminal_width(LEAST_WIDTH)
    return "\n".join(wrapped(line, width) for line in lines)


def _clipped(cell: str) -> str:
    return cell if len(cell) <= MOST_CHARACTERS else f"{cell[: MOST_CHARACTERS - 3]}..."


def _markdown(diff: GraphDiff) -> str:
    """Markdown for GitHub and Jupyter: a table for each section."""
    parts = ["\n".join(f"- {markdown_text(line)}" for line in headings(diff))]
    for section in sections(diff):
        parts.append(f"**{markdown_text(section.title)}**")
        if section.rows and not section.folded:
            parts.append(markdown([section.columns, *(tuple(map(markdown_text, row.cells)) for row in section.rows)]))
    return "\n\n".join(parts) + "\n"


def _html(diff: GraphDiff) -> str:
    """A self-contained HTML fragment without scripts."""
    parts = [f"<p>{'<br>'.join(map(escape, headings(diff)))}</p>"]
    for section in sections(diff):
        title = escape(section.title)
        if section.rows:
            table = html([section.columns, *(row.cells for row in section.rows)], "vertical-align:top")
            parts.append(f"<details{'' if section.folded else ' open'}><summary>{title}</summary>{table}</details>")
        else:
            parts.append(f"<p>{title}</p>")
    return f'<div class="aotkit-diff">{"".join(parts)}</div>'


def shown(diff: GraphDiff) -> dict[str, Any]:
    """What diff.js shows: it, next to both graphs, in which a click shows a row."""
    found = [replace(one, rows=[_on_both_sides(row, diff) for row in one.rows]) for one in sections(diff)]
    return {"headings": headings(diff), "sections": [asdict(one) for one in found], "a": diff.a, "b": diff.b}


def _on_both_sides(row: Row, diff: GraphDiff) -> Row:
    """What only one side saves or repeats is shown on the other side, too: where it computes that value."""

    def same(nodes: Sequence[int], here: str, there: str) -> tuple[int, ...]:
        wanted = {diff.values[here][node] for node in nodes}
        return tuple(node for node, value in enumerate(diff.values[there]) if value in wanted)

    return replace(row, a=row.a or same(row.b, "b", "a"), b=row.b or same(row.a, "a", "b"))
