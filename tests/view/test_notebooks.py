"""A cell's output in the programs that show notebooks, each of which puts HTML into its page in a way of its own.

Only Jupyter's can be run here; the others are imitated, as far as their source (VS Code) or their pages (Colab) tell.
"""

import json
from html import escape

import pytest

import aotkit
from tests.view.browser import executable
from tests.view.models import MODELS, tutorial_loss

pytestmark = pytest.mark.skipif(executable() is None, reason="no Chromium on this machine")
# Scripts that come in by innerHTML do not run; JupyterLab 4 puts copies in their places (rendermime/src/renderers.ts).
JUPYTERLAB = """
    container.innerHTML = output;
    for (const script of container.querySelectorAll("script")) {
      const copy = document.createElement("script");
      for (const { name, value } of script.attributes) copy.setAttribute(name, value);
      copy.textContent = script.textContent;
      script.parentNode.replaceChild(copy, script);
    }
"""
# VS Code appends copies, and takes them away at once (extensions/notebook-renderers/src/index.ts, domEval).
VS_CODE = """
    const made = document.createElement("div");
    made.innerHTML = output;
    container.append(made);
    for (const script of [...made.getElementsByTagName("script")]) {
      const copy = document.createElement("script");
      copy.text = script.innerText;
      if (script.type) copy.setAttribute("type", script.type);
      made.appendChild(copy).parentNode.removeChild(copy);
    }
"""
# Its notebooks' policy (backLayerWebView.ts), without what comes from VS Code itself.
VS_CODE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src https: http: data:; font-src https:; connect-src https:; child-src https: data:"
)
# What a user does with it. VS Code saves what a click on a link with `download` asks for, whatever tree the link is in.
USE = """
    const wrong = [], saved = [];
    addEventListener("error", (event) => wrong.push(event.message));
    addEventListener("unhandledrejection", (event) => wrong.push(String(event.reason)));
    addEventListener("securitypolicyviolation", (event) => wrong.push(event.violatedDirective));
    addEventListener("click", (event) => {
      const link = event.composedPath().find((node) => node instanceof HTMLAnchorElement);
      if (link) { event.preventDefault(); saved.push(link.download); }
    });
    const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    const until = async (holds) => { for (let i = 0; i < 300 && !holds(); i++) await frame(); };
    async function used() {
      const hosts = [...document.querySelectorAll(".aotkit-viewer")];
      await until(() => hosts.every((host) => host.shadowRoot));
      const [graphs, diff] = hosts.map((host) => host.shadowRoot);
      graphs.querySelector(".value").click();
      diff.querySelector("tr.entry").click();
      [...graphs.querySelectorAll("button")].find((button) => button.textContent === "PNG").click();
      await until(() => saved.length || wrong.length);
      const sides = [...diff.querySelectorAll(".graphs")].map((side) => side.shadowRoot);
      return {
        chosen: [graphs, ...sides].map((root) => root.querySelectorAll(".node.chosen").length > 0),
        themes: [graphs, diff].map((root) => root.querySelector(".viewer").dataset.theme),
        saved, wrong,
      };
    }
"""
PAGE = """<!doctype html>
<html {html}><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}"></head>
<body {body}><script>
    {use}
    for (const output of {outputs}) {{
      const container = document.createElement("div");
      document.body.append(container);
      {insert}
    }}
    window.result = used();
    window.result.then((found) => parent.postMessage(found, "*"));
</script></body></html>
"""
FRAME = """<!doctype html>
<script>window.result = new Promise((done) => addEventListener("message", (event) => done(event.data)));</script>
<iframe sandbox="allow-scripts" width="1400" height="800" srcdoc="{page}"></iframe>
"""


@pytest.fixture(scope="module")
def outputs():
    inputs = MODELS["tutorial"]()[1]
    both = [aotkit.extract(tutorial_loss, *inputs, partition=partition) for partition in ("default", "min_cut")]
    return json.dumps([both[0]._repr_html_(), aotkit.diff(*both)._repr_html_()]).replace("<", "\\u003c")


@pytest.mark.parametrize(
    ("program", "said", "theme"),
    [
        ("JupyterLab", {"body": 'data-jp-theme-light="false"'}, "dark"),
        ("JupyterLab", {"body": 'data-jp-theme-light="true"'}, "light"),
        ("VS Code", {"body": 'data-vscode-theme-kind="vscode-high-contrast"'}, "dark"),
        ("VS Code", {"body": 'data-vscode-theme-kind="vscode-light"'}, "light"),
        ("Colab", {"html": 'theme="dark"'}, "dark"),
        ("Colab", {"html": 'theme="default"'}, "light"),
    ],
)
def test_it_works_in_the_program_and_has_its_theme(browser, tmp_path, outputs, program, said, theme):
    browser.emulate("light" if theme == "dark" else "dark")
    page = PAGE.format(
        **{"html": "", "body": "", **said},
        policy=VS_CODE_POLICY if program == "VS Code" else "",
        insert=VS_CODE if program == "VS Code" else JUPYTERLAB,
        use=USE,
        outputs=outputs,
    )
    # An output of Colab's is in a frame of another origin.
    (tmp_path / "x.html").write_text(FRAME.format(page=escape(page)) if program == "Colab" else page, encoding="utf-8")
    browser.open(tmp_path / "x.html")
    assert browser.run("result") == {
        "chosen": [True] * 3, "themes": [theme] * 2, "saved": ["graphs.png"], "wrong": []
    }  # fmt: skip
    assert browser.problems() == []
    assert browser.requests() == []
