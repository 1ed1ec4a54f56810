"""The command line: `python -m aotkit demo`, `backends`, `partitioners`.

Exit codes: 0, all well; 1, a compiled function differs from eager; 2, wrong usage.
"""

import argparse
import json
import textwrap
from collections.abc import Sequence

WIDTH = 100


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    options = _parser().parse_args(arguments)
    if options.command == "demo":
        from aotkit.demo import demo

        return 0 if demo() else 1
    from aotkit.registry import backend_status, partitioner_status

    status = backend_status() if options.command == "backends" else partitioner_status()
    print(json.dumps(_as_json(options.command, status), indent=2) if options.json else _as_text(status))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="aotkit", description="Compile PyTorch training functions ahead of time.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("demo", help="graphs, time and memory of compiled functions next to eager (a few minutes)")
    for kind in ("backends", "partitioners"):
        listing = commands.add_parser(kind, help=f"list the {kind}, and why one cannot run here")
        listing.add_argument("--json", action="store_true", help="as JSON")
    return parser


def _as_json(kind: str, status: dict[str, str | None]) -> dict[str, object]:
    entries = [{"name": name, "available": reason is None, "reason": reason} for name, reason in status.items()]
    return {"schema": 1, kind: entries}


def _as_text(status: dict[str, str | None]) -> str:
    width = max(map(len, status), default=0) + 2
    return "\n".join(
        textwrap.fill(reason or "available", WIDTH, initial_indent=name.ljust(width), subsequent_indent=" " * width)
        for name, reason in status.items()
    )
