"""`Graphs.json()` as a page that shows it, and as the output of a notebook's cell.

Nothing of the user's can act as markup: the data stands in a script element of type application/json, where a `<` is
escaped, and viewer.js makes text nodes of it.
"""

import base64
import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

from aotkit.text import printable

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>html, body {{ margin: 0; height: 100% }}</style>
</head>
<body>
<div id="{id}" style="height:100%"></div>
<script type="application/json">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""

_OUTPUT = """<div id="{id}" class="aotkit-viewer" style="height:{height}px;overflow:auto">{fallback}</div>
<script type="application/json">{data}</script>
<script type="module">{script}</script>
"""


@dataclass(frozen=True)
class Program:
    """A script, the function of it that shows data in an element, `mount(host, data, css)`, and its style sheet."""

    script: str
    mount: str
    style: str


def viewer() -> Program:
    """The viewer of one `Graphs.json()`."""
    return Program(packaged("aotkit.view", "viewer.js"), "mount", packaged("aotkit.view", "viewer.css"))


def packaged(package: str, name: str) -> str:
    """The text of a file of a package; a script without its exports, for it shall stand in a page."""
    return (files(package) / name).read_text(encoding="utf-8").replace("export function", "function")


def render_page(data: Mapping[str, Any]) -> str:
    """A page that shows the data of `as_json` and needs nothing else: no network, no other file."""
    return page(data["name"], data, viewer())


def render_output(data: Mapping[str, Any], fallback: str) -> str:
    """The same for a notebook's cell, live or exported. Where scripts do not run, it is the HTML of `fallback`."""
    return output(fallback, data, viewer(), 640)


def page(title: str, data: Mapping[str, Any], program: Program) -> str:
    """A page that shows data by a program. Its policy lets it load nothing and run no other script."""
    script = _script("aotkit", program)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"
    return _PAGE.format(policy=policy, title=escape(printable(title)), id="aotkit", data=_embedded(data), script=script)


def output(fallback: str, data: Mapping[str, Any], program: Program, height: int) -> str:
    """The same for a notebook's cell, in so many pixels; `fallback` is HTML, for where scripts do not run."""
    name = f"aotkit-{uuid.uuid4().hex}"
    script = _script(name, program)
    return _OUTPUT.format(id=name, height=height, fallback=fallback, data=_embedded(data), script=script)


def _script(name: str, program: Program) -> str:
    """The program, and the line that lets it show, in the element of that id, the data that follows it."""
    start = f"const host = document.getElementById({json.dumps(name)});\n"
    data = "JSON.parse(host.nextElementSibling.textContent)"
    return f"{program.script}\n{start}{program.mount}(host, {data}, {json.dumps(program.style)});\n"


def _embedded(data: Mapping[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
