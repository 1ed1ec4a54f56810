"""`aotkit view`, `diff` and `export`: what is made of graphs that were written as JSON."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from aotkit.cli.usage import add_json, add_output, progress, show_json, usage_errors

if TYPE_CHECKING:
    from aotkit.cli.usage import Commands


FORMATS = ("dot", "mermaid", "model-explorer")


def add(commands: "Commands") -> None:
    view = commands.add_parser(
        "view", help="make a page of graphs, from what json.dump(graphs.json()) wrote, and open it"
    )
    view.add_argument("file", metavar="FILE.json")
    add_output(view, "FILE.html", "write the page there, and open nothing")
    add_json(view)
    view.set_defaults(run=_view)
    diff = commands.add_parser("diff", help="what differs between two such graphs")
    diff.add_argument("files", nargs=2, metavar="FILE.json")
    add_output(diff, "FILE.html", "write it as a page, too, with both graphs")
    add_json(diff)
    diff.set_defaults(run=_diff)
    export = commands.add_parser("export", help="print such graphs in the format of another program")
    export.add_argument("file", metavar="FILE.json")
    export.add_argument("--format", choices=FORMATS, required=True)
    add_output(export, "FILE", "write it there instead")
    export.set_defaults(run=_export)


def _view(options: argparse.Namespace) -> int:
    from aotkit.view import read_graphs, render_page

    with usage_errors():
        text = render_page(read_graphs(options.file))
        page = Path(options.output or Path(options.file).with_suffix(".html"))
        page.write_text(text, encoding="utf-8")
    if options.json:
        show_json({"schema": 1, "page": str(page)})
    else:
        print(page)
    if options.output is None:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
    return 0


def _diff(options: argparse.Namespace) -> int:
    from aotkit.view import compared, read_graphs

    tell = progress()
    with usage_errors():
        graphs = [read_graphs(file) for file in options.files]
        tell(f"comparing {' and '.join(str(len(found['nodes'])) for found in graphs)} nodes")
        found = compared(*graphs)
        if options.output is not None:
            found.save_html(options.output)
    if options.json:
        show_json(found.json())
    else:
        print(found)
    return 0


def _export(options: argparse.Namespace) -> int:
    from aotkit.view import model_explorer, read_graphs, render_dot, render_mermaid

    with usage_errors():
        graphs = read_graphs(options.file)
        match options.format:
            case "dot":
                text = render_dot(graphs)
            case "mermaid":
                text = render_mermaid(graphs)
            case _:
                text = json.dumps(model_explorer(graphs), indent=2) + "\n"
        if options.output:
            options.output.write_text(text, encoding="utf-8")
        else:
            print(text, end="")
    return 0
