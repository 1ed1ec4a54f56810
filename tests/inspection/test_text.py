"""The text shows what a reader looks for, within the width."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from aotkit.inspection import Graphs, render_text
from aotkit.inspection.nodes import dtype_name
from aotkit.text import bytes_name

GraphsOf = Callable[..., Graphs]


def parameter(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def tutorial(a: Tensor, b: Tensor) -> Tensor:
    x = a + b
    return x.cos().cos()


def projection(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(x @ w.t()).softmax(-1)


@pytest.fixture
def cut(graphs_of: GraphsOf) -> Graphs:
    return graphs_of(tutorial, parameter(1024, 2048), parameter(1024, 2048), partition="min_cut")


def test_operations_inputs_and_lines(cut: Graphs) -> None:
    text = render_text(cut, 200)
    assert text.startswith("tutorial: backend nop, partition min_cut\n")
    assert "forward 3 operations, backward 7 operations" in text
    assert "primals_1: f32[1024, 2048] = input a" in text
    assert "cos_1: f32[1024, 2048] = cos(cos)" in text
    assert "return cos_1" in text
    assert "save for backward add" in text
    assert "add: f32[1024, 2048] = saved activation" in text
    assert "tangents_1: f32[1024, 2048] = tangent" in text


def test_consecutive_operations_share_one_source_comment(cut: Graphs) -> None:
    listing = render_text(cut, 80).split("saved for backward\n")[0]
    assert listing.count("  x = a + b") == 1
    assert listing.count("  return x.cos().cos()") == 2  # once in forward, once in backward


def test_recomputed_lines_are_marked(cut: Graphs) -> None:
    marked = [line for line in render_text(cut, 80).splitlines() if "~ recomputed" in line]
    assert marked == ["  cos: f32[1024, 2048] = cos(add)  ~ recomputed: 16.0 MiB moved"]


def test_table_and_totals(cut: Graphs) -> None:
    table = render_text(cut, 160).split("saved for backward\n")[1]
    for text in ("add ", "f32[1024, 2048]", "8.0 MiB", "read by cos, sin", "test_text.py:", "x = a + b"):
        assert text in table.splitlines()[1]
    assert "saved activations: 8.0 MiB in 1 storage (1 value)" in table
    assert "recomputed: 1 operation: cos; 16.0 MiB moved" in table


@pytest.mark.parametrize("width", [60, 80, 119, 120, 140, 200])
def test_the_text_fits_the_width(graphs_of: GraphsOf, width: int) -> None:
    graphs = graphs_of(projection, parameter(64, 32), parameter(16, 32), dynamic=True)
    lines = render_text(graphs, width).splitlines()
    assert max(map(len, lines)) <= width
    side_by_side = any(line.startswith("forward ") and line.endswith("backward") for line in lines)
    assert side_by_side == (width >= 119)


def test_both_columns_hold_the_same_text_as_the_listing(cut: Graphs) -> None:
    def words(text: str) -> list[str]:
        return sorted(text.replace(" | ", " ").split())

    assert words(render_text(cut, 90)) == [word for word in words(render_text(cut, 250)) if word != "|"]


def test_default_width(cut: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(cut) == render_text(cut, 160)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert render_text(cut) == render_text(cut, 100)
    monkeypatch.setenv("COLUMNS", "20")
    assert render_text(cut) == render_text(cut, 60)


def test_colours_are_for_terminals_that_want_them(cut: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "TERM", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    assert "\x1b" not in str(cut)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert str(cut) == render_text(cut, colours=True)
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as context:
            context.setenv(name, value)
            assert str(cut) == render_text(cut, colours=False)


@pytest.mark.parametrize("width", [80, 160])
def test_colours_change_nothing_else(cut: Graphs, width: int) -> None:
    coloured, plain = render_text(cut, width, colours=True), render_text(cut, width, colours=False)
    assert re.sub(r"\x1b\[\d+m", "", coloured) == plain
    marks = re.findall(r"\x1b\[(\d+)m([^\x1b]*)\x1b\[0m", coloured)
    assert len(marks) == coloured.count("\x1b[0m")
    by_style: dict[str, list[str]] = {}
    for style, text in marks:
        by_style.setdefault(style, []).append(text)
    assert by_style["1"][:3] == ["tutorial: backend nop, partition min_cut", "forward", "backward"]
    assert all(text.startswith("# ") for text in by_style["2"])
    assert "cos: f32[1024, 2048] = cos(add)  ~ recomputed: 16.0 MiB moved" in " ".join(by_style["33"])
    assert by_style["36"] == ["save for backward add"]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_cells_of_the_table_break_within_their_column(cut: Graphs, width: int) -> None:
    heading, *rows = render_text(cut, width).split("saved for backward\n")[1].split("\n\n")[0].splitlines()
    start = heading.index("source")
    assert re.sub(r"\s", "", "".join(row[start:] for row in rows)).endswith("x=a+b")
    assert rows[0].split()[0] == "add"
    assert max(map(len, [heading, *rows])) <= width


def test_inputs_and_views_are_named(graphs_of: GraphsOf) -> None:
    graphs = graphs_of(projection, parameter(3, 5), parameter(4, 5), partition="min_cut", names=["x", "layer.weight"])
    text = render_text(graphs, 200)
    assert "saved view of input layer.weight" in text
    assert "saved input x" in text
    assert "(alive anyway)" in text


def test_symbolic_shapes(graphs_of: GraphsOf) -> None:
    text = render_text(graphs_of(projection, parameter(7, 5), parameter(4, 5), dynamic=True), 200)
    sizes = dict(size.split(" = ") for size in text.splitlines()[0].split("traced with ")[1].split(", "))
    rows, columns = (next(name for name, size in sizes.items() if size == wanted) for wanted in ("7", "4"))
    assert f"f32[{rows}, {columns}] = mm(" in text


def test_a_graph_without_gradients(graphs_of: GraphsOf) -> None:
    text = render_text(graphs_of(tutorial, torch.ones(2), torch.ones(2)), 160)
    assert "no gradients: inference graph" in text
    assert "saved" not in text
    assert "partition" not in text


def test_nothing_saved(graphs_of: GraphsOf) -> None:
    def double(x: Tensor) -> Tensor:
        return x * 2

    text = render_text(graphs_of(double, parameter(3)), 160)
    assert "saved for backward: nothing" in text
    assert "recomputed: 0 operations" in text


def test_constants_lists_and_subgraphs(graphs_of: GraphsOf) -> None:
    def fn(x: Tensor) -> Any:
        y = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
        return torch.cat([y, x.to(torch.float64).float()], dim=1)

    text = render_text(graphs_of(fn, torch.ones(2, 2)), 300)
    assert "subgraph " in text
    assert "= sin(" in text
    assert "dtype=f64" in text or ", f64)" in text
    assert "cat([getitem, " in text


def test_control_characters_do_not_reach_the_terminal(cut: Graphs) -> None:
    hostile = replace(cut, name="f\x1b[2J\nsaved activations: 0 B", input_names=["a\x1b[31m\r", "b"])
    text = render_text(hostile, 160)
    assert "\x1b" not in text
    assert "\r" not in text
    assert not any(line.startswith("saved activations: 0 B") for line in text.splitlines())


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (8 * 2**20, "8.0 MiB"),
        (3 * 2**30, "3.0 GiB"),
        (None, "?"),
    ],
)
def test_bytes(nbytes: int | None, text: str) -> None:
    assert bytes_name(nbytes) == text


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        (torch.bfloat16, "bf16"),
        (torch.int64, "i64"),
        (torch.uint8, "u8"),
        (torch.bool, "bool"),
        (torch.complex64, "c64"),
        (torch.float8_e4m3fn, "f8_e4m3fn"),
    ],
)
def test_dtypes(dtype: torch.dtype, text: str) -> None:
    assert dtype_name(dtype) == text
