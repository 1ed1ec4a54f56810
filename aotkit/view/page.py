"""Data as a page that shows it, and as the output of a notebook's cell.

Nothing of the user's can act as markup: the data stands in a script element of type application/json, where a `<` is
escaped, and the scripts make text nodes of it.
"""

import base64
import hashlib
import json
import uuid
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any, Literal

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
# What data is of -> the programs that show it, function of the last of them, pixels in a notebook. diff.js calls
# functions of viewer.js, and its style sheet uses the colours of viewer.css.
_PROGRAMS = {"graphs": (("viewer",), "mount", 640), "diff": (("viewer", "diff"), "mountDiff", 900)}
Kind = Literal["graphs", "diff"]


def render_page(data: Mapping[str, Any], title: str = "", kind: Kind = "graphs") -> str:
    """A page that needs nothing else. Its policy lets it load nothing and run no other script.

    Args:
        title: the name of the graphs, by default.
    """
    script = _script("aotkit", kind)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _PAGE.format(
        policy=f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:",
        title=escape(printable(title or data["name"])),
        id="aotkit",
        data=_embedded(data),
        script=script,
    )


def render_output(data: Mapping[str, Any], fallback: str, kind: Kind = "graphs") -> str:
    """The same for a notebook's cell, live or exported; `fallback` is HTML, for where scripts do not run."""
    name = f"aotkit-{uuid.uuid4().hex}"
    script, height = _script(name, kind), _PROGRAMS[kind][2]
    return _OUTPUT.format(id=name, height=height, fallback=fallback, data=_embedded(data), script=script)


def _script(name: str, kind: Kind) -> str:
    """The programs, and the line that lets them show, in the element of that id, the data that follows it."""
    programs, mount, _ = _PROGRAMS[kind]
    script, style = ("\n".join(_packaged(f"{one}.{ending}") for one in programs) for ending in ("js", "css"))
    start = f"const host = document.getElementById({json.dumps(name)});\n"
    data = "JSON.parse(host.nextElementSibling.textContent)"
    return f"{script}\n{start}{mount}(host, {data}, {json.dumps(style)});\n"


def _packaged(name: str) -> str:
    """The text of a file; a script without its exports, for it shall stand in a page."""
    return (files("aotkit.view") / name).read_text(encoding="utf-8").replace("export function", "function")


def _embedded(data: Mapping[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
