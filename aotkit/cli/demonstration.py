"""`aotkit demo`."""

import argparse
from typing import TYPE_CHECKING

from aotkit.cli.usage import add_json, progress, show_json

if TYPE_CHECKING:
    from aotkit.cli.usage import Commands


def add(commands: "Commands") -> None:
    demo = commands.add_parser("demo", help="graphs, time and memory of compiled functions next to eager (minutes)")
    add_json(demo)
    demo.set_defaults(run=_demo)


def _demo(options: argparse.Namespace) -> int:
    from aotkit.cli.demo import demo

    reports = demo(progress(), show=_nothing if options.json else _show)
    if options.json:
        show_json({"schema": 1, "reports": [report.json() for report in reports]})
    return 0 if all(report.passed for report in reports) else 1


def _show(text: object) -> None:
    print(text, end="\n\n", flush=True)


def _nothing(text: object) -> None:
    """JSON has what there is to show."""
