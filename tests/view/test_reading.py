"""Files that are no graphs, or damaged ones, are refused with the place that is wrong; whatever passes can be shown."""

import copy
import functools
import itertools
import json
import operator
import re

import pytest
import torch

import aotkit
from aotkit import cli
from aotkit.view import (
    compared,
    model_explorer,
    read_graphs,
    render_dot,
    render_mermaid,
    render_page,
    require_graphs,
)
from aotkit.view.result import shown as shown_of

ADVICE = "Write one by json.dump(graphs.json(), file)."
MISSING = object()
VALUES = (
    None,
    True,
    -1,
    1,
    10**6,
    10**400,
    1.5,
    1e300,
    "",
    "x\n\x1b",
    "\ud800",
    "getitem",
    [],
    [0],
    ["x"],
    {},
    {"x": 1},
)


def fn(x):
    left, right = x.chunk(2)
    return (left + right).cos().cos()


@pytest.fixture(scope="module")
def data():
    """With what a node can have: an item of a tuple, a recomputed one, one in a region, one in a kernel."""

    def declines(node):
        return "sums" if "add" in str(node.target) else None

    backend = aotkit.Backend(lambda gm, _: gm, declines=declines)
    compiled = aotkit.compile(fn, backend=backend, partition="min_cut")
    found = compiled.explain(torch.ones(4, requires_grad=True)).graphs.json()
    assert found["regions"]
    assert found["kernels"]
    assert found["totals"]["recomputed"]
    assert any(node["operator"] == "getitem" for node in found["nodes"])
    return found


def places(value, at=()):
    """The path of keys and indices to each value inside of one."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield (*at, key)
        yield from places(inner, (*at, key))


def shown(data, sound):
    """What `view`, `export` and `diff` make of it."""
    yield render_page(data)
    yield render_dot(data)
    yield render_mermaid(data)
    yield json.dumps(model_explorer(data))
    for found in (compared(data, sound), compared(sound, data)):
        yield str(found)
        yield json.dumps(found.json())
        yield render_page(shown_of(found), f"{data['name']} | {sound['name']}", kind="diff")
        yield found._repr_html_()


@pytest.mark.parametrize("step", [29, pytest.param(1, marks=pytest.mark.sweep)])
def test_whatever_is_missing_or_wrong_is_told_or_can_be_shown(step, data, tmp_path):
    path, changed = tmp_path / "x.json", copy.deepcopy(data)
    refused = passed = 0
    for at, value in itertools.islice(itertools.product(places(data), (MISSING, *VALUES)), 0, None, step):
        inner = functools.reduce(operator.getitem, at[:-1], changed)
        kept = copy.copy(inner)
        if value is MISSING:
            del inner[at[-1]]
        else:
            inner[at[-1]] = value
        path.write_text(json.dumps(changed))
        try:
            found, error = read_graphs(path), ""
        except ValueError as e:
            found, error = None, str(e)
        if found is None:
            assert error.startswith(f"{path} holds no graphs of schema 1: "), (at, value)
            assert error.endswith(ADVICE)
            refused += 1
        else:
            for text in shown(found, data):
                assert text.encode(), (at, value)
            passed += 1
        if isinstance(inner, dict):
            inner.update(kept)
        else:
            inner[:] = kept
    assert refused > 5 * passed > 100


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "is no JSON: it is empty"),
        (b"{", "is no JSON: Expecting property name"),
        (b"\xff\xfe{}", "is no JSON: it is not UTF-8"),
        (b'{"schema": NaN}', "is no JSON: NaN is no number"),
        (b'{"schema": 1e999}', "is no JSON: 1e999 is too large a number"),
        (b"[" * 100_000, "is no JSON: maximum recursion depth exceeded"),
        (b"[]", "it is a list"),
        (b'{"name": "f"}', "it has no 'schema'"),
        (b'{"schema": 2}', "schema is 2, not 1"),
        (b'{"schema": 1}', "it has no 'nodes'"),
        (None, "cannot be read: Is a directory"),
    ],
    ids=range(11),
)
@pytest.mark.parametrize("command", ["view", "diff", "export"])
def test_what_is_no_graph_is_told(command, content, found, tmp_path, capsys):
    path = tmp_path / "x.json"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    more = {"view": [], "diff": [str(path)], "export": ["--format", "dot"]}[command]
    assert cli.main([command, str(path), *more]) == 2
    error = capsys.readouterr().err
    assert error.startswith(str(path))
    assert found in error
    assert error.endswith(f"{ADVICE}\n")


@pytest.mark.parametrize("path", [".", "/", "", "no/such.json"])
def test_what_is_no_file_is_told(path, capsys):
    assert cli.main(["view", path]) == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("at", "value", "found"),
    [
        (("nodes", 2, "inputs"), [99], "nodes[2].inputs[0] is 99, not an index into the {} nodes"),
        (("nodes", 2, "inputs"), [2], "nodes[2].inputs[0] is 2, which does not come before node 2"),
        (("nodes", 2, "source"), "fn", 'nodes[2].source is "fn", not an index into the 2 sources'),
        (("saved", 0, "placeholder"), 0, "saved[0].placeholder is 0, which does not come after its node"),
        (("memory", "live"), [], "memory.live has 0 entries for {} nodes"),
        (("totals",), None, "totals is null, not an object"),
    ],
    ids=str,
)
def test_the_place_that_is_wrong_is_named(data, at, value, found):
    changed = copy.deepcopy(data)
    functools.reduce(operator.getitem, at[:-1], changed)[at[-1]] = value
    with pytest.raises(ValueError, match=re.escape(found.format(len(data["nodes"])))):
        require_graphs(changed, "x")
    with pytest.raises(ValueError, match="B holds no graphs"):
        aotkit.diff(data, changed)


@pytest.mark.parametrize("fn", [lambda x: x[x > 0].sum(), lambda x: x.sin().view(-1)], ids=["data", "sizes"])
def test_open_sizes_are_fine_and_so_are_keys_of_later_versions(fn):
    call = aotkit.compile(fn, backend="nop", dynamic=True, check=False)
    found = call.graphs(torch.ones(3, 2, requires_grad=True)).json()
    found |= {"new": 1, "sources": [{**source, "new": 1} for source in found["sources"]]}
    for node in found["nodes"]:
        node["new"] = 1
        node["cost"] = node["cost"] and {**node["cost"], "new": 1}
    require_graphs(json.loads(json.dumps(found)), "x")
    assert aotkit.diff(found, found).identical
