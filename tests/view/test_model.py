"""`Graphs.json()` says what is true of the run: bytes held, peak, readers, lines, modules."""

import json

import pytest
import torch
from torch.autograd.profiler import profile

import aotkit
from aotkit.benchmark.evaluation import evaluate
from aotkit.launches.allocations import most_allocated
from aotkit.testing.case import Inputs
from aotkit.testing.zoo import CASES
from aotkit.text import bytes_name
from aotkit.view import require_graphs
from tests.view.models import MODELS, Transformer, tutorial_loss, views

CPU = torch.device("cpu")


def compiled(name, partition):
    fn, inputs = MODELS[name]()
    return aotkit.compile(fn, backend="nop", partition=partition, check=False), fn, inputs


def held_after(step):
    """The bytes that are allocated while `step` runs, and still are while its result is alive; that result."""
    with profile(profile_memory=True, use_kineto=True) as events:
        result = step()
    return sum(e.nbytes() for e in events.kineto_results.events() if e.name() == "[memory]"), result


@pytest.fixture(scope="module")
def transformer():
    call, _, inputs = compiled("transformer", "min_cut")
    return call.graphs(*inputs)


RUNS = {
    "tutorial": "min_cut", "views": "default", "perceptron": "nx_min_cut", "convolution": "default",
    "transformer": "nx_min_cut", "norm": "min_cut",
}  # fmt: skip


@pytest.mark.thinned
@pytest.mark.parametrize(("name", "partition"), RUNS.items(), ids=str)
def test_saved_bytes_and_peak_are_those_of_the_run(name, partition):
    call, fn, inputs = compiled(name, partition)
    data = call.graphs(*inputs).json()
    require_graphs(data, name)
    state = list(fn.parameters()) if isinstance(fn, torch.nn.Module) else inputs
    for x in state:
        x.grad = None
    held, loss = held_after(lambda: call(*inputs))
    assert held - loss.untyped_storage().nbytes() == pytest.approx(data["totals"]["saved_bytes"], rel=0.01, abs=8)
    del loss
    measured = most_allocated(lambda: call(*inputs).backward(), CPU)
    assert data["totals"]["peak_bytes"] == max(data["memory"]["live"])
    assert measured == pytest.approx(data["totals"]["peak_bytes"], rel=0.1)


def test_it_agrees_with_the_text_and_with_the_judge_of_partitions(transformer):
    graphs = transformer
    data, text = graphs.json(), " ".join(str(graphs).split())
    totals = data["totals"]
    assert f"saved activations: {bytes_name(totals['saved_bytes'])}" in text
    assert f"inputs, outputs and their views (alive anyway): {bytes_name(totals['alive_bytes'])}" in text
    assert f"recomputed: {totals['recomputed']} operation" in text
    judged = evaluate(graphs.forward, graphs.backward, graphs.num_outputs)
    assert totals["peak_bytes"] == pytest.approx(judged.peak_bytes, abs=64)  # which frees what nobody reads at once
    activations = {row["storage"]: row["bytes"] for row in data["saved"] if row["kind"] == "activation"}
    assert sum(activations.values()) == totals["saved_bytes"] == data["memory"]["saved"][_steps(data, "forward") - 1]


def _steps(data, graph):
    return sum(node["graph"] == graph for node in data["nodes"])


def test_it_is_plain_json(transformer):
    data = transformer.json()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["schema"] == 1


def test_nodes_have_operator_type_line_and_class():
    data = aotkit.extract(tutorial_loss, *MODELS["tutorial"]()[1], partition="min_cut").json()
    nodes = {node["name"]: node for node in data["nodes"] if node["graph"] == "forward"}
    cos = nodes["cos"]
    assert (cos["operator"], cos["target"], cos["class"]) == ("cos", "aten.cos.default", "pointwise")
    assert cos["type"] == "f32[64, 128]"
    assert cos["tensors"] == [{"dtype": "f32", "shape": [64, 128], "bytes": 64 * 128 * 4}]
    assert "cos().cos()" in data["sources"][cos["source"]]["code"]
    assert [data["nodes"][i]["name"] for i in cos["inputs"]] == ["add_2"]
    assert [n["label"] for n in nodes.values() if n["role"] == "input"] == ["a", "b", "c", "d"]
    again = [n for n in data["nodes"] if n["role"] == "recomputed"]
    assert "cos" in [n["operator"] for n in again]
    assert all(n["graph"] == "backward" and n["cost"]["nbytes"] for n in again)


def test_classes(transformer):
    classes = {node["operator"]: node["class"] for node in transformer.json()["nodes"]}
    want = {"addmm": "matmul", "bmm": "matmul", "gelu": "pointwise", "_softmax": "reduction", "view": "view"}
    assert classes | want == classes
    assert classes["native_layer_norm"] == classes["sum"] == "reduction"


def test_nodes_of_both_graphs_know_their_module(transformer):
    model = Transformer(2)
    from_function = aotkit.extract(lambda x: model(x) * 2, *MODELS["transformer"]()[1], partition="min_cut")
    for graphs, prefix in [(transformer, ""), (from_function, "Transformer.")]:
        places = {(n["graph"], n["operator"], n["module"]) for n in graphs.json()["nodes"]}
        assert ("forward", "gelu", f"{prefix}layers.1.mlp.1") in places
        assert ("backward", "gelu_backward", f"{prefix}layers.1.mlp.1") in places
        # Where the gradients of the block's input meet, from its branch and from what follows.
        assert ("backward", "add", f"{prefix}layers.1") in places


def test_dynamo_names_modules_too():
    call = aotkit.compile(Transformer(1), backend="nop", capture="dynamo", check=False)
    data = call.graphs(*MODELS["transformer"]()[1]).json()
    assert "layers.0.attention.project" in {n["module"] for n in data["nodes"] if n["graph"] == "backward"}


def test_saved_values_link_their_producer_to_their_readers():
    data = aotkit.extract(views, *MODELS["views"]()[1]).json()
    assert {row["kind"] for row in data["saved"]} >= {"activation", "input"}
    for row in data["saved"]:
        producer, placeholder = data["nodes"][row["node"]], data["nodes"][row["placeholder"]]
        assert (producer["graph"], placeholder["graph"], placeholder["role"]) == ("forward", "backward", "saved")
        assert producer["storages"] == placeholder["storages"] == [row["storage"]]
        assert row["readers"]
        for reader in row["readers"]:
            assert any(row["storage"] in data["nodes"][i]["storages"] for i in data["nodes"][reader]["inputs"])


def test_memory_is_alive_from_its_making_to_its_last_use():
    data = aotkit.extract(lambda x: x.sin().exp().sum(), torch.ones(100, requires_grad=True)).json()
    at = {(n["graph"], n["name"]): i for i, n in enumerate(data["nodes"])}
    exp = data["storages"][data["nodes"][at["forward", "exp"]]["storages"][0]]
    assert (exp["held"], exp["bytes"], exp["first"]) == ("saved", 400, at["forward", "exp"])
    assert data["nodes"][exp["last"]]["operator"] == "mul"
    sin = data["storages"][data["nodes"][at["forward", "sin"]]["storages"][0]]
    assert (sin["held"], sin["last"]) == ("temporary", at["forward", "exp"])
    assert data["memory"]["live"][at["forward", "exp"]] == 800
    assert data["memory"]["live"][at["forward", "sum_1"]] == 404


def test_regions_and_why_an_operation_is_in_none():
    class_of_add = aotkit.Backend(
        lambda gm, _: gm, declines=lambda node: None if "add" in str(node.target) else "takes sums only"
    )
    graphs = aotkit.extract(lambda x: ((x + 1) + x).sin(), torch.ones(3), backend=class_of_add)
    data = graphs.json()
    nodes = {node["name"]: node for node in data["nodes"]}
    assert nodes["sin"]["region"] is None
    assert nodes["sin"]["outside"][0].endswith(": takes sums only")
    assert data["regions"][nodes["add_1"]["region"]]["nodes"] == ["add", "add_1"]
    assert nodes["add"]["outside"] == []


def test_open_sizes_have_names_and_the_bytes_of_the_trace():
    call = aotkit.compile(lambda x: x.sin().exp(), backend="nop", partition="default", dynamic=True, check=False)
    data = call.graphs(torch.ones(6, 4, requires_grad=True)).json()
    exp = next(node for node in data["nodes"] if node["operator"] == "exp")
    assert [type(size) for size in exp["tensors"][0]["shape"]] == [str, str]
    assert exp["tensors"][0]["bytes"] == 96
    json.dumps(data)


def test_a_call_without_gradients_saves_nothing():
    data = aotkit.extract(torch.sin, torch.ones(3)).json()
    assert data["saved"] == []
    assert {node["graph"] for node in data["nodes"]} == {"forward"}
    assert data["totals"]["peak_bytes"] == 12


@pytest.mark.sweep
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_function_of_the_zoo(case):
    graphs = aotkit.extract(case.build(CPU), *case.inputs(Inputs(CPU, 0)), partition="min_cut")
    data = graphs.json()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert all(i < step for step, node in enumerate(data["nodes"]) for i in node["inputs"])
    if graphs.backward is not None:
        judged = evaluate(graphs.forward, graphs.backward, graphs.num_outputs)
        assert data["totals"]["peak_bytes"] == pytest.approx(judged.peak_bytes, rel=0.02, abs=64)
        assert data["totals"]["saved_bytes"] == data["memory"]["saved"][_steps(data, "forward") - 1]
