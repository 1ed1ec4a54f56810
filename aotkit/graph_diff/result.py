"""What `aotkit.diff` returns, and what shows it."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from aotkit.graph_diff.records import Fusion, Operation, Output, Pair, Saved, is_kept_alike

SCHEMA = 1


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
        both = all(pair.a and pair.b for pair in self.recomputed) and all(is_kept_alike(pair) for pair in self.saved)
        same_totals = all(a == b for a, b in self.totals.values())
        found = (self.only, self.moved, self.changed, self.fusions, self.kernels, self.inputs, self.outputs)
        return both and same_totals and not any(found)

    def __str__(self) -> str:
        from aotkit.graph_diff.text import render_text

        return render_text(self)

    __repr__ = __str__

    def markdown(self) -> str:
        """Markdown for GitHub: tables."""
        from aotkit.graph_diff.markup import render_markdown

        return render_markdown(self)

    def _repr_markdown_(self) -> str:
        return self.markdown()

    def json(self) -> dict[str, Any]:
        """The same as plain data, of schema 1: these attributes, who `a` and `b` are, and `identical`."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("a", "b")}
        plain = {k: dict(v) if isinstance(v, Mapping) else [asdict(one) for one in v] for k, v in found.items()}
        return {"schema": SCHEMA, "a": _identity(self.a), "b": _identity(self.b), "identical": self.identical, **plain}

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write one file that needs no network: what differs, next to both graphs, in which it is shown."""
        from aotkit.graph_diff.page import render_page

        Path(path).write_text(render_page(self), encoding="utf-8")

    def _repr_html_(self) -> str:
        from aotkit.graph_diff.page import render_output

        return render_output(self)


def _identity(data: Mapping[str, Any]) -> dict[str, str]:
    return {key: data[key] for key in ("name", "backend", "partition", "torch")}
