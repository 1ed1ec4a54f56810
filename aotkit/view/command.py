"""`python -m aotkit view FILE.json`: the page of graphs that were written as JSON."""

import json
import sys
import webbrowser
from pathlib import Path

from aotkit.view.model import SCHEMA
from aotkit.view.page import render_page


def view(source: str, output: str | None) -> int:
    """Write the page to `output`, or next to the source and open it there; returns the exit code."""
    try:
        data = json.loads(Path(source).read_text(encoding="utf-8"))
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise ValueError(
                f"{source} holds no graphs of schema {SCHEMA}. Write one by json.dump(graphs.json(), file)."
            )
        page = Path(output or Path(source).with_suffix(".html"))
        page.write_text(render_page(data), encoding="utf-8")
    except (OSError, ValueError) as e:
        print(e, file=sys.stderr)
        return 2
    print(page)
    if output is None:
        webbrowser.open(page.resolve().as_uri())
    return 0
