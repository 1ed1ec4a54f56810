"""The viewer in a browser: it shows what the JSON says, by mouse and keyboard, and nothing of the user's runs."""

import dataclasses
import itertools
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import aotkit
from aotkit import Graphs
from tests.view.browser import executable
from tests.view.models import MODELS, Transformer, kernels_of, tutorial_loss

pytestmark = pytest.mark.skipif(executable() is None, reason="no Chromium on this machine")
HELPERS = """
    const all = (selector) => [...root.querySelectorAll(selector)];
    const button = (text) => all("button").find((b) => b.textContent === text);
"""
SAVE = """
    const blobs = [], make = URL.createObjectURL;
    URL.createObjectURL = (blob) => { blobs.push(blob); return make(blob); };
"""
HOSTILE = (
    "</script><img src=x onerror='window.ran=1'><script>window.ran=1</script>\"'><svg onload=\"window.ran=1\">{{1}}"
)


@pytest.fixture(scope="module")
def tutorial():
    return aotkit.extract(tutorial_loss, *MODELS["tutorial"]()[1], partition="min_cut")


@pytest.fixture(scope="module")
def gpt2():
    """Twelve layers."""
    return aotkit.extract(Transformer(12).eval(), *MODELS["transformer"]()[1])


def large(size):
    """A graph of so many operations, each of which reads the one before it and one of those before that."""
    graph = torch.fx.Graph()
    nodes = [graph.placeholder("x")]
    for i in range(size):
        nodes.append(graph.call_function(torch.ops.aten.add.Tensor, (nodes[-1], nodes[max(0, i - i % 7)])))
    graph.output((nodes[-1],))
    for node in nodes:
        node.meta["val"] = torch.empty(4, device="meta")
    return Graphs("large", "nop", "default", torch.fx.GraphModule({}, graph), num_outputs=1)


def operations(data, graph):
    return [
        i
        for i, node in enumerate(data["nodes"])
        if node["graph"] == graph and node["class"] != "input" and node["operator"] != "getitem"
    ]


def test_every_operation_is_drawn_and_every_saved_value_listed(shown, tutorial):
    data, run = tutorial.json(), shown(tutorial)
    for graph in ("forward", "backward"):
        drawn = run(f"return all(`[aria-label={graph}] .node`).map((node) => Number(node.dataset.node))")
        assert sorted(drawn) == operations(data, graph)
    links = sum(len(node["inputs"]) for node in data["nodes"])
    inputs = [i for i, node in enumerate(data["nodes"]) if node["class"] == "input"]
    links -= sum(i in inputs for node in data["nodes"] for i in node["inputs"])
    assert run("return all('svg path[marker-end]').length") == links
    assert run("return all('.value').length") == len(data["saved"])
    assert "32.0 KiB saved" in run("return root.querySelector('header').textContent")
    assert data["totals"]["saved_bytes"] == 32 * 1024
    assert run("return all('.node rect[fill=\"url(#again)\"]').length") == data["totals"]["recomputed"] > 0


def test_a_saved_value_leads_to_its_producer_and_its_readers(shown, tutorial):
    data, run = tutorial.json(), shown(tutorial)
    (row,) = (row for row in data["saved"] if row["kind"] == "activation")
    run("all('.value')[0].click(); await frame()")
    marked = "return all(`.node.${MARK}`).map((node) => Number(node.dataset.node))"
    assert run(marked.replace("${MARK}", "chosen")) == [row["node"]]
    assert run(marked.replace("${MARK}", "near")) == row["readers"]
    details = run("return root.querySelector('footer').textContent")
    assert "x = a + b + c + d" in details
    assert row["reason"] in details
    # And back: choosing the producer marks the row.
    run(f"await frame(); all('.node[data-node=\"{row['node']}\"]')[0].dispatchEvent(new MouseEvent('click'))")
    assert run("return all('.value[aria-pressed=true]').length") == 1


def test_layers_are_one_stack_that_opens(shown, gpt2):
    run = shown(gpt2)
    boxes = "return all('section[data-items]').map((section) => Number(section.dataset.items))"
    closed = run(boxes)
    assert max(closed) < 30
    stack = "all('.node').find((node) => node.textContent.includes('12 \u00d7 Block'))"
    assert "layers.0 … layers.11" in run(f"return {stack}.textContent")
    run(f"{stack}.dispatchEvent(new MouseEvent('dblclick')); await frame()")
    assert run(boxes)[0] == closed[0] + 11
    run("button('Operations').click(); await frame()")
    data = gpt2.json()
    assert run(boxes) == [len(operations(data, graph)) for graph in ("forward", "backward")]
    assert run("return all('.node').length") < 300  # of what is in sight
    run("button('Lines').click(); await frame()")
    assert run("return all('.node').some((node) => node.textContent.includes('scores = (q @ k'))")


def test_boxes_lie_below_what_they_read_and_do_not_overlap(shown, gpt2):
    data, run = gpt2.json(), shown(gpt2)
    run("button('Operations').click(); await frame()")
    boxes = {}
    for node in ElementTree.fromstring(
        run(SAVE + "button('SVG').click(); await frame(); return blobs[0].text()")
    ).iter():
        if node.get("data-node"):
            (frame,) = (rect for rect in node if rect.get("class") == "box")
            x, y = map(float, node.get("transform").removeprefix("translate(").removesuffix(")").split())
            boxes[int(node.get("data-node"))] = x, y, x + float(frame.get("width")), y + float(frame.get("height"))
    for graph in ("forward", "backward"):
        placed = sorted((boxes[i] for i in operations(data, graph)), key=lambda box: box[1])
        for i, (left, _, right, bottom) in enumerate(placed):
            beside = itertools.takewhile(lambda box, bottom=bottom: box[1] < bottom, placed[i + 1 :])
            assert all(other[2] <= left or other[0] >= right for other in beside)
    for i, box in boxes.items():
        assert all(boxes[j][3] < box[1] for j in data["nodes"][i]["inputs"] if j in boxes)


def test_of_a_large_graph_only_what_is_in_sight_is_in_the_page(shown):
    run = shown(large(5000))
    assert run("return Number(root.querySelector('[data-items]').dataset.items)") == 5000
    names = "all('.node').map((node) => Number(node.dataset.node))"
    first = run(f"return {names}")
    assert 10 < len(first) < 200
    last = "const box = root.querySelector('.scroll'); box.scrollTop = box.scrollHeight; await frame(); await frame();"
    assert run(f"{last} return Math.max(...{names})") == 5000


def test_search_finds_and_opens(shown, gpt2):
    data, run = gpt2.json(), shown(gpt2)
    type_in = "const search = root.querySelector('input'); search.value = 'gelu layers.3'; "
    run(type_in + "search.dispatchEvent(new Event('input')); await frame()")
    hits = [i for i, n in enumerate(data["nodes"]) if "gelu" in n["target"] and n["module"].startswith("layers.3")]
    assert run("return root.querySelector('[role=status]').textContent") == f"{len(hits)} hits"
    enter = "new KeyboardEvent('keydown', {key: 'Enter', bubbles: true})"
    run(f"root.querySelector('input').dispatchEvent({enter}); await frame()")
    assert run("return all('.node.chosen').map((node) => Number(node.dataset.node))") == hits[:1]


def test_it_works_by_keyboard_and_says_what_is_chosen(shown, browser, gpt2):
    run = shown(gpt2)
    run("root.querySelector('[role=listbox]').focus()")
    for _ in range(2):
        browser.press("ArrowDown")
    run("await frame()")
    active = "root.getElementById(root.querySelector('[role=listbox]').getAttribute('aria-activedescendant'))"
    name = run(f"return {active}.getAttribute('aria-label')")
    assert "12 \u00d7 Block" in name
    assert "closed group" in name
    assert run("return root.querySelector('[aria-live]').textContent").startswith("operations")
    before = run("return Number(root.querySelector('[data-items]').dataset.items)")
    browser.press("Enter", "\r")
    assert run("await frame(); return Number(root.querySelector('[data-items]').dataset.items)") == before + 11
    browser.press("Escape")
    assert run("await frame(); return Number(root.querySelector('[data-items]').dataset.items)") == before
    unnamed = "all('button, input').filter((b) => !(b.getAttribute('aria-label') || b.textContent.trim())).length"
    assert run(f"return {unnamed}") == 0


def test_the_program_shows_live_memory(shown, tutorial):
    data, run = tutorial.json(), shown(tutorial)
    run("button('Program').click(); await frame()")
    rows = run("return all('[role=row]').slice(1).map((row) => [...row.children].map((cell) => cell.textContent))")
    steps = [i for i, node in enumerate(data["nodes"]) if node["class"] != "input"]
    assert [int(row[0]) for row in rows] == steps
    assert [row[1] for row in rows] == [data["nodes"][i]["name"] for i in steps]
    assert rows[0][-1].strip() == "32.0 KiB"
    assert data["memory"]["live"][steps[0]] == 32 * 1024


def test_pictures_hold_both_graphs_in_their_colours(shown, tutorial):
    data, run = tutorial.json(), shown(tutorial)
    svg = run(SAVE + "button('SVG').click(); await frame(); return blobs[0].text()")
    assert svg.count('class="node') == sum(len(operations(data, graph)) for graph in ("forward", "backward"))
    assert "var(" not in svg
    assert "#dbe8ff" in svg  # pointwise
    png = SAVE + "button('PNG').click(); while (!blobs.length) await frame();"
    assert run(png + "return [...new Uint8Array(await blobs[0].slice(1, 4).arrayBuffer())]") == [*b"PNG"]


def test_regions_have_their_colours(shown):
    def declines(node):
        return "sums" if "sum" in str(node.target) else None

    backend = aotkit.Backend(lambda gm, _: gm, declines=declines)
    graphs = aotkit.extract(lambda x: x.sin().exp().sum().cos().neg(), torch.ones(3), backend=backend)
    run = shown(graphs)
    run("button('Region').click(); await frame()")
    fills = run("return all('.node').map((node) => node.querySelector('rect.box').getAttribute('fill'))")
    sin, exp, total, cos, neg = fills
    assert sin == exp != cos == neg
    assert total not in (sin, cos)
    run("all('.node')[2].dispatchEvent(new MouseEvent('click'))")
    assert ": sums" in run("return root.querySelector('footer').textContent")


def test_kernels_have_their_colours(shown, tutorial):
    graphs = aotkit.extract(lambda x: (x.sin().exp() @ x).cos(), torch.ones(3, 3))
    told = kernels_of(graphs, ["sin", "exp"], ["mm"], ["exp", "cos"], name=HOSTILE)  # the last computes exp for itself
    run = shown(dataclasses.replace(graphs, kernels=told))
    assert run("return root.querySelector('.totals').textContent").endswith(" 3 kernels · 300 B measured at the peak")
    run("button('Kernel').click(); await frame()")
    sin, exp, product, cos = run("return all('.node rect.box').map((box) => box.getAttribute('fill'))")
    assert sin == exp
    assert len({sin, product, cos}) == 3
    about = "all('.node')[{}].dispatchEvent(new MouseEvent('click')); return root.querySelector('footer').textContent"
    assert f"kernels0 {HOSTILE} (C++), 2 operations, 1.00 us, 100 B held; 2 {HOSTILE} (C++)" in run(about.format(1))
    assert f"kernel1 {HOSTILE} (C++), 1 operation, 1.00 us, 200 B held" in run(about.format(2))
    run("button('Program').click(); await frame()")
    assert run("return root.querySelector('path.measured').getAttribute('d').match(/L/g).length") == 2
    assert "300 B with nop's kernels, as measured" in run("return root.querySelector('h3').textContent")
    assert run("return window.ran") is None
    run = shown(tutorial)
    assert run("return button('Kernel') === undefined && button('Class') === undefined")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_follows_the_users_scheme(shown, browser, tutorial, scheme):
    browser.emulate(scheme)
    run = shown(tutorial)
    colour = run("return getComputedStyle(root.querySelector('.viewer')).backgroundColor")
    assert (colour == "rgb(255, 255, 255)") == (scheme == "light")


def hostile():
    """Names of all kinds that would run if they were markup."""

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module(HOSTILE.replace(".", ""), nn.Linear(4, 4))

        def forward(self, x):
            return next(self.children())(x).sin().sum()  # </script><img src=x onerror='window.ran=1'>

    graphs = aotkit.extract(Named(), torch.ones(2, 4))
    return dataclasses.replace(graphs, name=HOSTILE, backend=HOSTILE, partition=HOSTILE, input_names=[HOSTILE] * 3)


def test_hostile_names_run_nothing(shown):
    run = shown(hostile())
    assert HOSTILE in run("return root.querySelector('h2').textContent")
    for page in ("Lines", "Modules", "Operations", "Program"):
        run(f"button({page!r})?.click(); await frame()")
        run("all('.value, .node, [role=row]').forEach((e) => e.dispatchEvent(new MouseEvent('click'))); await frame()")
    assert run("return window.ran") is None
    assert run("return root.querySelectorAll('img, script').length") == 0


def test_cells_of_a_notebook_show_it_or_the_plain_page(browser, tmp_path, tutorial):
    """Here without the policy that keeps a page of its own from running anything."""
    cells = "\n".join(graphs._repr_html_() for graphs in (tutorial, hostile(), tutorial))
    (tmp_path / "notebook.html").write_text(f"<body>{cells}</body>", encoding="utf-8")
    browser.open(tmp_path / "notebook.html")
    assert browser.problems() == []
    shown = "[...document.querySelectorAll('.aotkit-viewer')].map((e) => e.shadowRoot.querySelectorAll('.node').length)"
    assert min(browser.run(shown)) > 2
    assert browser.run("window.ran") is None
    assert browser.requests() == []
    # A page that runs no scripts shows what is below the shadow.
    assert "saved activations: 32.0 KiB" in browser.run("document.querySelector('.aotkit-viewer').textContent")
