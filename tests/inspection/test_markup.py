"""Markdown and HTML hold the same facts, and nothing of the user's acts as markup."""

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from torch import Tensor

from aotkit.inspection import Graphs, render_html, render_markdown

GraphsOf = Callable[..., Graphs]
HOSTILE = "f|`*<script>alert(1)</script>](javascript:x) $x$ & </pre>"


def tutorial(a: Tensor, b: Tensor) -> Tensor:
    x = a + b
    return x.cos().cos()


def hostile_lines(x: Tensor) -> Tensor:
    return (x * 3).exp().sin()  # </pre><script>alert(1)</script> | ``` ````


@pytest.fixture
def cut(graphs_of: GraphsOf) -> Graphs:
    inputs = [torch.randn(1024, 2048, requires_grad=True) for _ in range(2)]
    return graphs_of(tutorial, *inputs, partition="min_cut")


@pytest.fixture
def hostile(graphs_of: GraphsOf) -> Graphs:
    graphs = graphs_of(hostile_lines, torch.randn(4, requires_grad=True))
    return replace(graphs, name=HOSTILE, backend=HOSTILE, partition=HOSTILE, input_names=[HOSTILE])


class Reader(HTMLParser):
    """Collects tags and text, and checks that tags are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag != "br":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_markdown_holds_table_totals_and_both_graphs(cut: Graphs) -> None:
    text = render_markdown(cut)
    assert text == cut._repr_markdown_()
    assert "| name | type | bytes | operator | why | source |" in text
    assert "8.0 MiB" in text
    assert text.count("```text\n") == 2
    assert "cos: f32[1024, 2048] = cos(add)  ~ recomputed: 16.0 MiB moved" in text


def test_markdown_rows_have_as_many_cells_as_the_header(hostile: Graphs) -> None:
    rows = render_markdown(hostile).split("\n\n")[2].splitlines()
    assert len(rows) > 2
    assert {row.count("|") for row in rows} == {7}


def test_markdown_outside_fences_is_inert(hostile: Graphs) -> None:
    text = render_markdown(hostile)
    fences = re.findall(r"^`{3,}", text, re.MULTILINE)
    assert len(fences) == 4
    assert {len(fence) for fence in fences} == {5}  # one more than the longest run in the user's line
    outside = "".join(re.split(r"^`{5}.*?^`{5}$", text, flags=re.MULTILINE | re.DOTALL))
    assert not set("<>`[]$") & set(outside)


def test_html_holds_two_columns_table_and_marks(cut: Graphs) -> None:
    html = render_html(cut)
    reader = Reader(html)
    assert reader.tags.count("pre") == 2
    assert "saved activations: 8.0 MiB" in reader.text
    assert re.search(r'<span class="aotkit-recomputed" style="[^"]*">cos: f32\[1024, 2048\] = cos\(add\)', html)
    assert "http" not in html
    assert not re.search(r"[;\"]color:", html)


def test_html_shows_hostile_text_as_text(hostile: Graphs) -> None:
    reader = Reader(render_html(hostile))
    assert "script" not in reader.tags
    assert reader.tags.count("pre") == 2
    assert set(reader.attributes) <= {"class", "style"}
    assert HOSTILE in reader.text
    assert "</pre><script>alert(1)</script> | ``` ````" in reader.text


def test_a_graph_without_gradients(graphs_of: GraphsOf) -> None:
    graphs = graphs_of(tutorial, torch.ones(2), torch.ones(2))
    assert "no gradients: inference graph" in Reader(render_html(graphs)).text
    markdown = render_markdown(graphs)
    assert "no gradients: inference graph" in markdown
    assert "| name |" not in markdown
