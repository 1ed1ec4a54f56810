"""`Graphs.json()` as a page that shows it, and as the output of a notebook's cell.

Nothing of the user's can act as markup: the data stands in a script element of type application/json, where a `<` is
escaped, and viewer.js makes text nodes of it.
"""

import base64
import hashlib
import json
import uuid
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

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

_OUTPUT = """<div id="{id}" class="aotkit-viewer" style="height:640px;overflow:auto">{fallback}</div>
<script type="application/json">{data}</script>
<script type="module">{script}</script>
"""


def render_page(data: Mapping[str, Any]) -> str:
    """A page that shows the data of `as_json` and needs nothing else: no network, no other file.

    Its policy lets it load nothing and run no script but the viewer.
    """
    script = _script("aotkit")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src blob:"
    return _PAGE.format(policy=policy, title=escape(data["name"]), id="aotkit", data=_embedded(data), script=script)


def render_output(data: Mapping[str, Any], fallback: str) -> str:
    """The same for a notebook's cell, live or exported. Where scripts do not run, it is the HTML of `fallback`."""
    name = f"aotkit-{uuid.uuid4().hex}"
    return _OUTPUT.format(id=name, fallback=fallback, data=_embedded(data), script=_script(name))


def _script(name: str) -> str:
    """The viewer, and the line that shows it in the element of that id, with the data that follows it."""
    viewer, style = ((files("aotkit.view") / f"viewer.{kind}").read_text(encoding="utf-8") for kind in ("js", "css"))
    start = f"const host = document.getElementById({json.dumps(name)});\n"
    start += f"mount(host, JSON.parse(host.nextElementSibling.textContent), {json.dumps(style)});\n"
    return f"{viewer.replace('export function', 'function')}\n{start}"


def _embedded(data: Mapping[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
