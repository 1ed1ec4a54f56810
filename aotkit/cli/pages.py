"""`aotkit view`, `diff` and `export`: what is made of graphs that were written as JSON."""

import argparse
import json
from pathlib import Path

from aotkit.cli.usage import Commands, add_command, add_output, progress, show, usage_errors

FORMATS = ("dot", "mermaid", "model-explorer")


def add(commands: Commands) -> None:
    view = add_command(
        commands, "view", _view, "make a page of graphs, from what json.dump(graphs.json()) wrote, and open it"
    )
    view.add_argument("file", metavar="FILE.json")
    add_output(view, "FILE.html", "write the page there, and open nothing")
    diff = add_command(commands, "diff", _diff, "what differs between two such graphs")
    diff.add_argument("files", nargs=2, metavar="FILE.json")
    add_output(diff, "FILE.html", "write it as a page, too, with both graphs")
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
    show(options, {"schema": 1, "page": str(page)}, page)
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
    show(options, found.json(), found)
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
