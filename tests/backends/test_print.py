"""print: each graph once, with shapes and the lines it comes from; it computes what nop computes."""

import io

import pytest
import torch

import aotkit
import aotkit.backends.print


def function(x, w):
    hidden = x @ w
    return hidden.sin().sum()


@pytest.fixture
def inputs():
    return torch.randn(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)


def test_each_graph_is_printed_once_to_the_stream(inputs, capsys):
    stream = io.StringIO()
    compiled = aotkit.compile(function, backend=aotkit.backends.print.to(stream), partition="default")
    for _ in range(2):
        compiled(*inputs).backward()
    text = stream.getvalue()
    assert text.count("def forward(") == 2
    assert capsys.readouterr().out == ""

    forward, backward = text.split("def forward(")[1:]
    assert 'mm: "f32[3, 5]" = torch.ops.aten.mm.default(' in forward
    assert "tangents_1" not in forward
    assert 'tangents_1: "f32[]"' in backward
    assert '"f32[4, 5]" = torch.ops.aten.mm.default(' in backward


def test_the_users_lines_stand_above_their_operations(inputs):
    stream = io.StringIO()
    aotkit.compile(function, backend=aotkit.backends.print.to(stream))(*inputs)
    for code in ("hidden = x @ w", "return hidden.sin().sum()"):
        assert code in stream.getvalue()
    assert "test_print.py" in stream.getvalue()


def test_by_name_it_prints_to_standard_output(inputs, capsys):
    aotkit.compile(function, backend="print")(*inputs)
    assert capsys.readouterr().out.count("def forward(") == 2


def test_without_gradients_there_is_one_graph(inputs, capsys):
    with torch.no_grad():
        aotkit.compile(function, backend="print")(*inputs)
    assert capsys.readouterr().out.count("def forward(") == 1


def test_a_new_signature_prints_its_own_graphs(inputs, capsys):
    compiled = aotkit.compile(function, backend="print")
    compiled(*inputs)
    capsys.readouterr()
    compiled(torch.randn(7, 4), inputs[1])
    text = capsys.readouterr().out
    assert text.count("def forward(") == 2
    assert "f32[7, 5]" in text


def test_it_computes_what_eager_computes(inputs):
    compiled = aotkit.compile(function, backend=aotkit.backends.print.to(io.StringIO()), partition="default")
    want = torch.autograd.grad(function(*inputs), inputs)
    torch.testing.assert_close(torch.autograd.grad(compiled(*inputs), inputs), want)
