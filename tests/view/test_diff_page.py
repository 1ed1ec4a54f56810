"""The page of a diff in a browser: its rows show what they are about in both graphs, and nothing of the user's runs."""

import dataclasses

import pytest

import aotkit
from tests.view.browser import executable
from tests.view.models import MODELS, tutorial_loss

pytestmark = pytest.mark.skipif(executable() is None, reason="no Chromium on this machine")
HOSTILE = "</script><img src=x onerror='window.ran=1'><script>window.ran=1</script>{{1}}"
HELPERS = """
    const graphs = (side) => root.querySelectorAll(".graphs")[side].shadowRoot;
    const chosen = (side) =>
        [...graphs(side).querySelectorAll(".node.chosen")].map((node) => Number(node.dataset.node));
    const row = (title, text) => [...root.querySelectorAll("details")]
        .find((one) => one.querySelector("summary").textContent.startsWith(title))
        .querySelectorAll("tbody tr")[text];
"""


@pytest.fixture(scope="module")
def tutorial():
    inputs = MODELS["tutorial"]()[1]
    return [aotkit.extract(tutorial_loss, *inputs, partition=partition) for partition in ("default", "min_cut")]


def test_a_row_is_shown_in_both_graphs(shown, tutorial):
    diff = aotkit.diff(*tutorial)
    run = shown(diff)
    saved = [pair.a.nodes[0] for pair in diff.saved if pair.b is None]
    for i, node in enumerate(saved):
        assert run(f"row('saved only in A', {i}).click(); await frame(); return chosen(0)") == [node]
        # B saves it not, but computes the same value, in forward and again in backward.
        same = [j for j, value in enumerate(diff.values["b"]) if value == diff.values["a"][node]]
        assert len(same) == 2
        assert run("return chosen(1)") == same
    assert run("return root.querySelectorAll('tr.chosen').length") == 1
    run("row('recomputed only in B', 0).dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'})); await frame()")
    again = [pair.b.node for pair in diff.recomputed]
    assert set(run("return chosen(1)")) <= set(again)
    assert run("return chosen(1).length") > 0


def test_hostile_names_run_nothing(shown, tutorial):
    diff = aotkit.diff(*(dataclasses.replace(g, name=HOSTILE, input_names=[HOSTILE] * 4) for g in tutorial))
    run = shown(diff)
    assert HOSTILE in run("return root.querySelector('nav').textContent")
    run("root.querySelectorAll('details').forEach((one) => { one.open = true; })")
    run("root.querySelectorAll('.entry').forEach((one) => one.click()); await frame()")
    assert run("return window.ran") is None
    assert (
        run("return root.querySelectorAll('img, script').length + graphs(0).querySelectorAll('img, script').length")
        == 0
    )


def test_a_notebooks_cell_shows_it_or_the_plain_tables(browser, tmp_path, tutorial):
    text = aotkit.diff(*tutorial)._repr_html_()
    (tmp_path / "notebook.html").write_text(f"<body>{text}</body>", encoding="utf-8")
    browser.open(tmp_path / "notebook.html")
    assert browser.problems() == []
    found = "document.querySelector('.aotkit-viewer').shadowRoot.querySelectorAll('.graphs')"
    assert browser.run(f"[...{found}].every((one) => one.shadowRoot.querySelectorAll('.node').length > 2)")
    assert "saved only in A" in browser.run("document.querySelector('.aotkit-viewer').textContent")
