"""`aotkit backends` and `aotkit partitioners`."""

import argparse
import textwrap
from typing import TYPE_CHECKING, Any

from aotkit.cli.usage import add_json, progress, show_json

if TYPE_CHECKING:
    from aotkit.cli.usage import Commands

WIDTH = 100


def add(commands: "Commands") -> None:
    for kind, run in (("backends", _backends), ("partitioners", _partitioners)):
        listing = commands.add_parser(kind, help=f"list the {kind}, and why one cannot run here")
        add_json(listing)
        listing.set_defaults(run=run)


def _backends(options: argparse.Namespace) -> int:
    progress()("loading torch and the backends")
    from aotkit.registry import backend_status

    return _list("backends", backend_status(), options.json)


def _partitioners(options: argparse.Namespace) -> int:
    progress()("loading torch and the partitioners")
    from aotkit.registry import partitioner_status

    return _list("partitioners", partitioner_status(), options.json)


def _list(kind: str, status: dict[str, str | None], json: bool) -> int:
    if json:
        show_json({"schema": 1, kind: entries(status)})
    else:
        print(status_text(status))
    return 0


def entries(status: dict[str, str | None]) -> list[dict[str, Any]]:
    """Names with the reason why they cannot be used here, or None, as data."""
    return [{"name": name, "available": reason is None, "reason": reason} for name, reason in status.items()]


def status_text(status: dict[str, str | None]) -> str:
    """The same as lines, with the reasons below each other."""
    width = max(map(len, status), default=0) + 2
    return "\n".join(
        textwrap.fill(reason or "available", WIDTH, initial_indent=name.ljust(width), subsequent_indent=" " * width)
        for name, reason in status.items()
    )
