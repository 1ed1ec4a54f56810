"""What was measured, as a table in Markdown, and as data."""

import dataclasses
import importlib.metadata
import os
import platform
import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from tests.models.measure import Measured
from tests.models.processes import Row

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- written by make models: begin -->", "<!-- end -->"
# Relative, in float32: graphs may add in another order than eager.
ALLOWED = 1e-3
COLUMNS = ["model", "library", "aotkit", "check", "gradients", "s", "torch.compile", "gradients", "s", "why"]
PACKAGES = {"torch_geometric": "torch-geometric"}


def is_right(measured: Measured | None) -> bool:
    """Whether it was compiled, and trained as eager does."""
    return measured is not None and _is_close(measured) and measured.check is not False and not measured.zeros


def is_behind(row: Row) -> bool:
    """Whether torch.compile takes a model that aotkit does not."""
    return _is_close(row.theirs) and not is_right(row.ours)


def page(rows: Sequence[Row], command: str) -> str:
    """Everything between the markers of docs/models.md."""
    measured = [row for row in rows if row.missing is None]
    skipped = [row for row in rows if row.missing is not None]
    behind = [f"`{row.step.name}`" for row in measured if is_behind(row)]
    parts = [
        f"Measured on {date.today().isoformat()} with `{command}`, on {os.cpu_count()} cores ({platform.machine()}), "
        f"Python {platform.python_version()}, {_versions(rows)}.",
        f"Of {len(measured)} training steps, aotkit has {_count(is_right(r.ours) for r in measured)} right, "
        f"{_count(is_right(r.ours) and r.ours.outcome == 'whole' for r in measured if r.ours)} of them in one graph; "
        f"torch.compile has {_count(is_right(r.theirs) for r in measured)} right. "
        + (f"torch.compile alone takes {', '.join(behind)}." if behind else "torch.compile takes none alone."),
        table(measured),
    ]
    if skipped:
        names = ", ".join(f"`{row.step.name}` ({row.missing})" for row in skipped)
        parts.append(f"Not measured there: {names}.")
    return "\n\n".join(parts)


def table(rows: Sequence[Row]) -> str:
    """One line for each model."""
    aligned = ["---:" if name in ("gradients", "s") else "---" for name in COLUMNS]
    lines = [COLUMNS, aligned, *map(_cells, rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def write(rows: Sequence[Row], command: str) -> None:
    """Put it into docs/models.md, in the place of what was there."""
    text = PAGE.read_text(encoding="utf-8")
    between = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    if not between.search(text):
        raise ValueError(f"{PAGE} has no {BEGIN} ... {END} to write between.")
    PAGE.write_text(between.sub(lambda _: f"{BEGIN}\n\n{page(rows, command)}\n\n{END}", text), encoding="utf-8")


def as_data(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """For `json.dumps`."""
    return [
        {
            "model": row.step.name,
            "library": row.step.library,
            "missing": row.missing,
            "aotkit": dataclasses.asdict(row.ours) if row.ours else None,
            "torch.compile": dataclasses.asdict(row.theirs) if row.theirs else None,
        }
        for row in rows
    ]


def _cells(row: Row) -> list[str]:
    assert row.ours is not None
    assert row.theirs is not None
    check = {True: "passed", False: "failed", None: ""}[row.ours.check]
    ours = row.ours.outcome + (f" ({row.ours.capture})" if row.ours.capture else "")
    reasons = (
        row.ours.why
        if row.ours.why
        else [f"torch.compile: {why}" for why in dict.fromkeys(row.theirs.why) if not is_right(row.theirs)]
    )
    sides = [[m.outcome if m is row.theirs else ours, _gradients(m), _seconds(m)] for m in (row.ours, row.theirs)]
    sides[0].insert(1, check)
    return [row.step.name, row.step.library, *sides[0], *sides[1], _plain("; ".join(dict.fromkeys(reasons)))]


def _gradients(measured: Measured) -> str:
    if measured.difference is None:
        return ""
    notes = [measured.compared] if measured.compared else []
    notes += [f"{measured.zeros} zeros for None"] if measured.zeros else []
    note = f" ({', '.join(notes)})" if notes else ""
    return ("equal" if measured.difference == 0 else f"{measured.difference:.1e}") + note


def _seconds(measured: Measured) -> str:
    return "" if measured.seconds is None else f"{measured.seconds:.1f}"


def _plain(text: str) -> str:
    """Nothing that Markdown would take for its own, and paths of files from their packages on."""
    text = re.sub(rf"\S*/(?:site-packages|python3\.\d+)/|{re.escape(str(PAGE.parents[1]))}/", "", text)
    return re.sub(r"([|*_`<>\[\]])", r"\\\1", " ".join(text.split()))


def _is_close(measured: Measured | None) -> bool:
    if measured is None or measured.difference is None:
        return False
    return _is_compiled(measured) and measured.difference <= ALLOWED


def _is_compiled(measured: Measured) -> bool:
    return measured.outcome == "whole" or measured.outcome.endswith("graphs")


def _count(found: Any) -> int:
    return sum(map(bool, found))


def _versions(rows: Sequence[Row]) -> str:
    libraries = dict.fromkeys(["torch", *(row.step.library for row in rows if row.missing is None)])
    return ", ".join(f"{name} {importlib.metadata.version(PACKAGES.get(name, name))}" for name in libraries)
