"""Backend "auto": chosen for each graph by its devices, with a reason."""

import html
import json

import pytest
import torch
from torch.nn.functional import embedding

import aotkit
from aotkit.capture import BEST, default_backend
from aotkit.capture.auto import BEST_OF_MODELS, choice_for
from aotkit.cli import main
from aotkit.interfaces import Backend


def loss(x):
    return (x.sin() * x).sum()


def as_it_is(gm, example_inputs):
    return gm


@pytest.fixture
def backends(monkeypatch):
    """Three, of which the first cannot run, and the second only with fixed sizes, for tensors without memory."""
    offers = {
        "absent": Backend(as_it_is, unavailable=lambda: "there is no such device"),
        "fixed": Backend(as_it_is, fixed_sizes=True),
        "any": Backend(as_it_is),
    }
    for name, backend in offers.items():
        aotkit.register_backend(name, backend)
    monkeypatch.setitem(BEST, "meta", [["absent"], ["fixed"], ["any"]])
    yield
    for name in offers:
        aotkit.unregister_backend(name)


def test_the_first_that_runs_is_chosen_and_the_others_have_reasons(backends):
    there, elsewhere = torch.empty(2, device="meta"), torch.empty(2)
    found = choice_for([elsewhere, 3, there], open_sizes=False)
    assert found.names == ["fixed"]
    assert found.why == "backend 'auto' is 'fixed' on meta; not 'absent': there is no such device"
    found = choice_for([there], open_sizes=True)
    assert found.names == ["any"]
    assert "not 'fixed': it compiles for fixed sizes, and some are open" in found.why


@pytest.mark.parametrize("capture", ["aot", "dynamo"])
def test_what_learns_matrices_has_a_table_of_its_own(backends, monkeypatch, capture):
    monkeypatch.setitem(BEST, "cpu", [["fixed"]])
    monkeypatch.setitem(BEST_OF_MODELS, "cpu", [["any"]])
    x = torch.randn(3, 4, requires_grad=True)
    for module, name in ((torch.nn.LayerNorm(4), "fixed"), (torch.nn.Linear(4, 2), "any")):
        graphs = aotkit.compile(module, capture=capture).graphs(x)
        assert graphs.backend == name
    assert graphs.why_backend == "backend 'auto' is 'any' for what learns matrices on cpu"


TABLE = torch.randn(1000, 16)
GRAPHS = {
    "softmax": (lambda x: x.softmax(-1) * 2, "fuser"),
    "a product between": (lambda x: ((x * 2) @ x.relu()).sigmoid(), "fuser"),
    "sorted, without a gradient": (lambda x: x.detach().sort(-1)[0] * x, "fuser"),
    "a small sum of sums": (lambda x: x.softmax(-1) * x[0].detach().cumsum(0)[-1], "fuser"),
    "a row of a large table": (lambda x: x.exp() * embedding(torch.zeros(1).long(), TABLE).sum(), "fuser"),
    "pooling": (lambda x: torch.nn.functional.avg_pool2d(x.relu()[None], 3), "any"),
    "an index": (lambda x: x[:, torch.arange(63, -1, -1)] * 2, "any"),
    "sums of sums": (lambda x: x.sigmoid().cumsum(-1), "any"),
}


@pytest.mark.thinned
@pytest.mark.skipif(default_backend().name == "nop", reason="there is no C++ compiler")
@pytest.mark.parametrize("capture", ["aot", pytest.param("dynamo", marks=pytest.mark.sweep)])
@pytest.mark.parametrize("name", GRAPHS)
def test_what_leaves_more_than_to_libraries_is_the_next_ones(backends, monkeypatch, name, capture):
    monkeypatch.setitem(BEST, "cpu", [["fuser"], ["any"]])
    fn, backend = GRAPHS[name]
    x = torch.randn(64, 64, requires_grad=True)
    fast = aotkit.compile(fn, capture=capture)
    fast(x)
    for _ in range(2):  # the first time it is found out
        graphs = fast.graphs(x)
        assert graphs.backend == backend, graphs.why_backend
        assert ("not 'fuser': " in graphs.why_backend) == (backend == "any")
    assert f"backend {backend!r}" in fast.check(x).subject
    with torch.no_grad():
        assert fast.graphs(x).backend == backend


def test_dynamo_meets_the_next_one_too(backends, monkeypatch):
    test_what_leaves_more_than_to_libraries_is_the_next_ones(backends, monkeypatch, "sums of sums", "dynamo")


def test_a_list_needs_all_of_its_backends(backends, monkeypatch):
    monkeypatch.setitem(BEST, "meta", [["fixed", "absent"], ["unheard_of"], ["any"]])
    found = choice_for([torch.empty(2, device="meta")], open_sizes=False)
    assert found.names == ["any"]
    assert found.why.endswith("not 'absent': there is no such device; not 'unheard_of': it is not installed")


def test_the_devices_of_the_table_have_what_runs_there():
    for device in BEST:
        for names in BEST[device]:
            assert set(names) <= set(aotkit.list_backends())


def test_without_a_compiler_it_is_nop(monkeypatch):
    monkeypatch.setattr("aotkit.capture.auto.cpp_compiler", lambda: None)
    found = default_backend()
    assert (found.name, found.why) == (
        "nop",
        "backend 'auto' is 'nop' on cpu; not 'inductor': there is no C++ compiler",
    )
    x = torch.randn(4, requires_grad=True)
    fast = aotkit.compile(loss)
    fast(x).backward()
    assert fast.graphs(x).backend == "nop"
    monkeypatch.setattr("aotkit.api.cpp_compiler", lambda: None)
    with pytest.raises(aotkit.UnavailableError, match="no C\\+\\+ compiler"):
        aotkit.memory_efficient_fusion(loss)


@pytest.mark.parametrize("capture", ["aot", "dynamo"])
def test_each_graph_has_its_own_and_tells_why(backends, monkeypatch, capture):
    monkeypatch.setitem(BEST, "cpu", [["absent"], ["any"]])
    x = torch.randn(4, requires_grad=True)
    fast = aotkit.compile(loss, capture=capture)
    why = "backend 'auto' is 'any' on cpu; not 'absent': there is no such device"
    assert "backend='auto'" in repr(fast)
    assert f"with backend 'any' and partition 'min_cut'\n  {why}\n" in fast.explain(x).way
    graphs = fast.graphs(x)
    assert (graphs.backend, graphs.why_backend) == ("any", why)
    assert why in str(graphs)
    for text in (graphs._repr_markdown_(), graphs._repr_html_()):
        assert why in html.unescape(text)
    assert fast.report(x).passed


def test_several_share_a_graph(backends, monkeypatch):
    def declines(node):
        return None if node.target is torch.ops.aten.sin.default else "it takes sin alone"

    aotkit.register_backend("of_sin", Backend(as_it_is, declines=declines))
    monkeypatch.setitem(BEST, "cpu", [["of_sin", "any"]])
    try:
        x = torch.randn(4, requires_grad=True)
        graphs = aotkit.compile(lambda x: x.sin().sin().sum()).graphs(x)
    finally:
        aotkit.unregister_backend("of_sin")
    assert graphs.backend == "of_sin, any"
    assert "backend 'auto' is 'of_sin, any' on cpu" in str(graphs)
    assert graphs.regions["forward"].regions[0].backend == "of_sin"


def test_a_backend_that_was_asked_for_has_no_reason():
    x = torch.randn(4, requires_grad=True)
    fast = aotkit.compile(loss, backend="nop")
    assert fast.graphs(x).why_backend == ""
    assert "auto" not in fast.explain(x).way


@pytest.mark.parametrize("capture", ["aot", "dynamo"])
def test_open_sizes_count(backends, monkeypatch, capture):
    monkeypatch.setitem(BEST, "cpu", [["fixed"], ["any"]])
    for dynamic, expected in ((False, "fixed"), (True, "any")):
        x = torch.randn(4, 3, requires_grad=True)
        assert aotkit.compile(loss, capture=capture, dynamic=dynamic).graphs(x).backend == expected


def test_the_name_is_nobodys():
    with pytest.raises(ValueError, match="leaves the choice to aotkit"):
        aotkit.register_backend("auto", as_it_is)
    with pytest.raises(ValueError, match="leaves the choice to aotkit"):
        aotkit.register_partitioner("auto", as_it_is)
    for give in (aotkit.get_backend, lambda name: aotkit.by_region("nop", name)):
        with pytest.raises(aotkit.UnknownNameError, match="give it to `compile`"):
            give("auto")


def test_the_list_of_backends_tells(capsys):
    assert main(["backends", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["auto"]["cpu"] == [*default_backend().names]
    assert main(["backends"]) == 0
    assert default_backend().why in capsys.readouterr().out


@pytest.mark.skipif(default_backend().name == "nop", reason="there is no C++ compiler")
def test_what_is_saved_names_the_backend_itself(tmp_path):
    x = torch.randn(4, requires_grad=True)
    aotkit.compile(loss).save(tmp_path / "step", x)
    torch.testing.assert_close(aotkit.load(tmp_path / "step", loss)(x), loss(x))
