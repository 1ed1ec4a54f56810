"""`aotkit view`: what is made of graphs that were written as JSON."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from aotkit.cli.usage import add_json, add_output, show_json, usage_errors

if TYPE_CHECKING:
    from aotkit.cli.usage import Commands


def add(commands: "Commands") -> None:
    view = commands.add_parser(
        "view", help="make a page of graphs, from what json.dump(graphs.json()) wrote, and open it"
    )
    view.add_argument("file", metavar="FILE.json")
    add_output(view, "FILE.html", "write the page there, and open nothing")
    add_json(view)
    view.set_defaults(run=_view)


def _view(options: argparse.Namespace) -> int:
    from aotkit.view.page import render_page
    from aotkit.view.reading import read_graphs

    page = Path(options.output or Path(options.file).with_suffix(".html"))
    with usage_errors():
        page.write_text(render_page(read_graphs(options.file)), encoding="utf-8")
    if options.json:
        show_json({"schema": 1, "page": str(page)})
    else:
        print(page)
    if options.output is None:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
    return 0
