"""`aotkit.diff` says what differs, by what is computed: two partitions, two backends, files, other names."""

import copy
import dataclasses
import json
import re

import pytest
import torch

import aotkit
from aotkit import cli
from aotkit.inspection import recomputed, saved_bytes
from aotkit.inspection.text import operation_count
from aotkit.testing.case import Inputs
from aotkit.testing.zoo import CASES
from tests.view.models import Transformer, kernels_of

HOSTILE = "</script><img src=x onerror='window.ran=1'>|`*\n# $x$"


def block(partition, backend="nop"):
    """GPT-2 of one layer, with dropout."""
    torch.manual_seed(0)
    return aotkit.extract(Transformer(1), torch.arange(64).reshape(2, 32), partition=partition, backend=backend)


@pytest.fixture(scope="module")
def default():
    return block("default")


@pytest.fixture(scope="module")
def min_cut():
    return block("min_cut")


@pytest.fixture(scope="module")
def nx_min_cut():
    return block("nx_min_cut")


def of(fn, *args, **options):
    return aotkit.extract(fn, *(args or [torch.randn(8, 8, requires_grad=True)]), **options)


def renamed(graphs):
    """The same graphs with other names for all nodes."""
    parts = copy.deepcopy((graphs.forward, graphs.backward))
    for gm in parts:
        for i, node in enumerate(gm.graph.nodes):
            node.name = f"n{len(gm.graph.nodes) - i}"
    return dataclasses.replace(graphs, forward=parts[0], backward=parts[1])


def only(pairs, side):
    return [pair.a or pair.b for pair in pairs if getattr(pair, "b" if side == "a" else "a") is None]


def activation_bytes(saved):
    return sum(one.nbytes or 0 for one in saved if one.kind == "activation")


def test_equal_graphs_differ_in_nothing(default, nx_min_cut):
    for graphs in (default, nx_min_cut):
        found = aotkit.diff(graphs, json.loads(json.dumps(graphs.json())))
        assert found.identical
        assert "no difference" in str(found)


def test_names_of_nodes_do_not_matter(min_cut):
    other = renamed(min_cut)
    assert not {n["name"] for n in other.json()["nodes"]} & {n["name"] for n in min_cut.json()["nodes"]}
    assert aotkit.diff(min_cut, other).identical
    assert aotkit.diff(other, min_cut).identical


@pytest.mark.parametrize(
    ("first", "second"), [("default", "min_cut"), ("default", "nx_min_cut"), ("nx_min_cut", "min_cut")]
)
def test_partitions_compute_the_same_and_save_something_else(request, first, second):
    a, b = (request.getfixturevalue(name) for name in (first, second))
    found = aotkit.diff(a, b)
    assert not found.identical
    assert not found.only
    assert not found.changed
    assert not found.inputs
    for i, graphs in enumerate((a, b)):
        side = "ab"[i]
        saved = [one for pair in found.saved if (one := getattr(pair, side))]
        again = [one for pair in found.recomputed if (one := getattr(pair, side))]
        assert activation_bytes(saved) == saved_bytes(graphs) == found.totals["saved_bytes"][i]
        assert (
            sum(one.role == "recomputed" for one in again) == len(recomputed(graphs)) == found.totals["recomputed"][i]
        )
        counts = f"forward {found.totals['forward'][i]} operations, backward {found.totals['backward'][i]} operations"
        assert operation_count(graphs) == counts
    less, more = activation_bytes(only(found.saved, "a")), activation_bytes(only(found.saved, "b"))
    assert more - less == saved_bytes(b) - saved_bytes(a)


def test_what_is_saved_once_and_computed_twice(default, nx_min_cut):
    found = aotkit.diff(default, nx_min_cut)
    again = {one.operator for one in only(found.recomputed, "b")}
    assert {"gelu", "native_layer_norm"} <= again
    assert only(found.recomputed, "a") == []
    assert found.operators["gelu"] == (1, 2)
    backwards = aotkit.diff(nx_min_cut, default)
    assert backwards.operators["gelu"] == (2, 1)
    assert {one.operator for one in only(backwards.recomputed, "a")} == again
    assert [one.nodes for one in only(backwards.saved, "b")] == [one.nodes for one in only(found.saved, "a")]


def decomposed_gelu(x, approximate="none"):
    return x * 0.5 * (1 + torch.erf(x * 0.7071067811865476))


def decomposed_layer_norm(x, shape, weight, bias, eps):
    var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    scale = torch.rsqrt(var + eps)
    return (x - mean) * scale * weight + bias, mean, scale


DECOMPOSITIONS = {
    torch.ops.aten.gelu.default: decomposed_gelu,
    torch.ops.aten.native_layer_norm.default: decomposed_layer_norm,
}


def test_of_two_decompositions_what_is_left_goes_by_line(min_cut):
    found = aotkit.diff(min_cut, block("min_cut", aotkit.Backend(lambda gm, _: gm, decompositions=DECOMPOSITIONS)))
    a, b = ({one.operator for one in only(found.only, side)} for side in "ab")
    assert a == {"native_layer_norm", "gelu"}
    assert b == {"var_mean", "rsqrt", "erf", "add", "sub", "mul"}
    same_after_all(found)
    text = found.markdown().replace("&#95;", "_")
    assert "| native_layer_norm | add x2, mul x2, var_mean, rsqrt, sub | models.py:32  x = x + self.attention(" in text


@pytest.mark.sweep
def test_inductor_against_nop(min_cut):
    found = aotkit.diff(min_cut, block("min_cut", "inductor"))
    a, b = ({one.operator for one in only(found.only, side)} for side in "ab")
    assert {"native_layer_norm", "gelu", "_log_softmax"} <= a
    assert {"var_mean", "rsqrt", "erf"} <= b
    same_after_all(found)


def same_after_all(found):
    """What reads something that is computed otherwise: matrix products, and what the last one of them reads."""
    assert not {"addmm", "mm", "embedding"} & {(pair.a or pair.b).operator for pair in found.only}
    assert not {"addmm", "mm", "embedding"} & set(found.operators)
    assert "view" in {pair.a.operator for pair in found.changed}
    both = [pair.a for pair in found.saved if pair.a and pair.b and pair.a.kind == "activation"]
    assert "f32[64, 128]" in {one.type for one in both}


def test_an_argument_that_changed_is_one_change():
    found = aotkit.diff(of(lambda x: (x.sin() * 2).exp().cos()), of(lambda x: (x.sin() * 3).exp().cos()))
    (change,) = [pair for pair in found.changed if pair.a.graph == "forward"]
    assert (change.a.expression, change.b.expression) == ("mul(sin, 2)", "mul(sin, 3)")
    assert not found.only
    assert not found.identical


def test_another_order_or_wiring_is_a_difference():
    x, y = torch.randn(2, 4)
    f, g = of(lambda x, y: (x.sin(), y.cos()), x, y), of(lambda x, y: (y.cos(), x.sin()), x, y)
    found = aotkit.diff(f, g)
    assert not found.only
    assert [(one.graph, one.position) for one in found.outputs] == [("forward", 0), ("forward", 1)]
    f, g = (of(lambda x, y, i=i: x * (x, y)[i] + y.sin(), x, y) for i in range(2))
    assert not aotkit.diff(f, g).identical
    assert not aotkit.diff(of(lambda x: x + x.sum(0)), of(lambda x: x + x.sum(1))).identical


def test_sizes_and_inputs_that_differ():
    def f(x, mask=None):
        return (x * 2).exp() if mask is None else (x * 2).exp() * mask

    small, large = (torch.ones(size, requires_grad=True) for size in (4, 8))
    found = aotkit.diff(of(f, small), of(f, large))
    assert not found.only
    (saved,) = found.saved
    assert (saved.a.nbytes, saved.b.nbytes) == (16, 32)
    assert "saved in both, not alike" in str(found)
    found = aotkit.diff(of(f, small), of(f, small, torch.ones(4)))
    assert [(pair.a, pair.b.name) for pair in found.inputs] == [(None, "mask")]
    assert {one.operator for one in only(found.only, "b")} == {"mul"}


def test_open_sizes_go_by_any_name():
    graphs = aotkit.compile(lambda x: x.sin().exp(), backend="nop", dynamic=True, check=False).graphs(
        torch.ones(6, 4, requires_grad=True)
    )
    data = graphs.json()
    names = {size for node in data["nodes"] for tensor in node["tensors"] for size in tensor["shape"]}
    assert names
    text = json.dumps(data)
    for i, name in enumerate(sorted(names)):
        text = text.replace(f'"{name}"', f'"s{900 - i}"')
    assert aotkit.diff(data, json.loads(text)).identical


def test_constants_go_by_types_and_order():
    a, b = torch.arange(4.0), torch.arange(4)

    def graphs(names):
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        first, second = (graph.get_attr(name) for name in names)
        graph.output(
            (
                graph.call_function(
                    torch.ops.aten.where.self,
                    (graph.call_function(torch.ops.aten.gt.Tensor, (first, second)), first, x),
                ),
            )
        )
        for node, value in zip(graph.nodes, (a, a, b, a.bool(), a), strict=False):
            node.meta["val"] = value
        root = torch.nn.Module()
        for name, value in zip(names, (a, b), strict=True):
            root.register_buffer(name, value)
        return aotkit.Graphs("f", "nop", "default", torch.fx.GraphModule(root, graph), num_outputs=1)

    assert aotkit.diff(graphs(["c0", "c1"]), graphs(["d7", "c0"])).identical


def test_each_random_draw_is_one_of_its_own():
    def f(x):
        return torch.rand_like(x) + torch.rand_like(x)

    def g(x):
        noise = torch.rand_like(x)
        return noise + noise

    one, two = (aotkit.compile(fn, backend="nop", random="torch", check=False).graphs(torch.ones(3)) for fn in (f, g))
    assert aotkit.diff(one, one).identical
    found = aotkit.diff(one, two)
    assert found.operators == {"rand_like": (2, 1)}
    assert "rand_like" in {one.operator for one in only(found.only, "a")}


def by_parts(*outside):
    return aotkit.Backend(
        lambda gm, _: gm, declines=lambda node: "is left out" if str(node.target).split(".")[1] in outside else None
    )


def test_regions_that_are_not_the_same():
    def f(x):
        return x.sin().exp().cos().neg().tanh()

    whole, split = (of(f, torch.ones(3), backend=by_parts(*outside)) for outside in (["tanh"], ["tanh", "cos"]))
    (fusion,) = aotkit.diff(whole, split).fusions
    assert ([len(r.nodes) for r in fusion.a], [len(r.nodes) for r in fusion.b]) == ([4], [2])
    names = [node["name"] for node in whole.json()["nodes"]]
    assert [names[i] for i in fusion.a[0].alone] == ["cos", "neg"]
    assert "fused differently: 1 region of A, 1 region of B" in str(aotkit.diff(whole, split))
    assert not aotkit.diff(whole, whole).fusions
    (alone,) = aotkit.diff(of(f, torch.ones(3)), split).fusions
    assert (alone.a, len(alone.b)) == ((), 1)


def test_kernels_that_are_not_the_same():
    x = torch.ones(4, 4)
    graphs = of(lambda x: ((x @ x).sin().exp(), x.cos()), x)

    def fused(*groups):
        return dataclasses.replace(graphs, kernels=kernels_of(graphs, *groups))

    whole, split = fused(["mm"], ["sin", "exp", "cos"]), fused(["cos"], ["mm"], ["sin", "exp"])
    found = aotkit.diff(whole, split)
    (fusion,) = found.kernels
    names = [node["name"] for node in whole.json()["nodes"]]
    assert [[names[i] for i in kernel.nodes] for kernel in fusion.a] == [["sin", "exp", "cos"]]
    assert [[names[i] for i in kernel.nodes] for kernel in fusion.b] == [["cos"], ["sin", "exp"]]
    assert "fused differently: 1 kernel of A, 2 kernels of B" in str(found)
    assert re.search(r"forward +sin, exp, cos +sin, exp \| one by one: cos", str(found))
    assert "2 kernels" in str(found).splitlines()[0]
    assert not found.identical
    assert len(found.json()["kernels"]) == 1
    assert aotkit.diff(whole, whole.json()).identical
    # What two kernels compute, each for itself, is in both; what one side computes alone is no fusion.
    twice = aotkit.diff(fused(["mm"], ["sin", "exp"], ["sin", "cos"]), fused(["mm"], ["sin", "exp"], ["cos"]))
    (fusion,) = twice.kernels
    assert [[names[i] for i in kernel.nodes] for kernel in (*fusion.a, *fusion.b)] == [["sin", "cos"], ["cos"]]
    assert not aotkit.diff(fused(["mm"], ["sin"]), fused(["mm"], ["exp"])).kernels
    # Where one side has not asked for its kernels, nothing is known of them.
    assert aotkit.diff(graphs, whole).identical


def test_as_data_and_as_markdown(default, min_cut):
    found = aotkit.diff(default, min_cut)
    data = found.json()
    assert json.loads(json.dumps(data, allow_nan=False)) == json.loads(json.dumps(data))
    assert (data["schema"], data["identical"], data["b"]["partition"]) == (1, False, "min_cut")
    assert data["totals"]["saved_bytes"] == (saved_bytes(default), saved_bytes(min_cut))
    text = found._repr_markdown_()
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1
    assert len(tables) > 3


def test_what_is_no_graph_is_refused(default):
    with pytest.raises(TypeError, match="not str"):
        aotkit.diff("graphs.json", default)
    for data in ({}, {"schema": 2, "nodes": []}, {"schema": 1, "nodes": [{"name": "x"}]}):
        with pytest.raises(ValueError, match=r"json\.dump\(graphs\.json\(\), file\)"):
            aotkit.diff(default, data)


def test_the_command(tmp_path, capsys, default, min_cut):
    for name, graphs in (("a", default), ("b", min_cut)):
        (tmp_path / f"{name}.json").write_text(json.dumps(graphs.json()))
    files = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    assert cli.main(["diff", *files]) == 0
    assert capsys.readouterr().out == f"{aotkit.diff(default, min_cut)}\n"
    assert cli.main(["diff", *files, "--json", "-o", str(tmp_path / "d.html")]) == 0
    assert json.loads(capsys.readouterr().out)["identical"] is False
    assert "mountDiff" in (tmp_path / "d.html").read_text()
    (tmp_path / "b.json").write_text("[]")
    for wrong in (files, [files[0], str(tmp_path / "missing.json")]):
        assert cli.main(["diff", *wrong]) == 2
        assert capsys.readouterr().err


def test_nothing_of_the_users_is_markup(tmp_path):
    named = [dataclasses.replace(of(torch.sin), name=HOSTILE, input_names=[HOSTILE]) for _ in range(2)]
    data = named[1].json()
    for node in data["nodes"]:
        node["name"] = node["label"] = node["expression"] = node["type"] = HOSTILE
        node["call"] = node["call"].replace("sin", "cos") and f"{HOSTILE}(%0)"
    found = aotkit.diff(named[0], data)
    found.save_html(tmp_path / "x.html")
    for text in ((tmp_path / "x.html").read_text(), found._repr_html_()):
        assert "<img" not in text
        assert text.count("</script>") == 2
    assert "<" not in found.markdown()
    assert not any(line.startswith("# ") for line in f"{found}\n{found.markdown()}".splitlines())


@pytest.mark.sweep
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_function_of_the_zoo(case):
    cpu = torch.device("cpu")
    a, b = (aotkit.extract(case.build(cpu), *case.inputs(Inputs(cpu, 0)), partition=p) for p in ("default", "min_cut"))
    for graphs in (a, b):
        if graphs.backward is not None:
            assert aotkit.diff(graphs, renamed(graphs)).identical
        assert aotkit.diff(graphs, graphs).identical
    found = aotkit.diff(a, b)
    assert not found.inputs
    assert json.loads(json.dumps(found.json(), allow_nan=False))["schema"] == 1
    assert str(found)
    assert found.markdown()
    for side, graphs in (("a", a), ("b", b)):
        assert activation_bytes([one for pair in found.saved if (one := getattr(pair, side))]) == saved_bytes(graphs)
