"""What aotkit shows of a compilation is the same once its graphs have been data, over real graphs."""

import copy
import dataclasses
import json

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import aotkit
from aotkit.benchmark import workloads
from aotkit.inspection import kept, recomputation_costs, render_html, render_text, saved_values
from aotkit.inspection.kept import graphs_data
from aotkit.inspection.kept import graphs_of as rebuilt_graphs
from aotkit.inspection.nodes import storage_roots
from aotkit.inspection.saved import COPIED
from aotkit.passes import Region, Regions, description, graph_data, graph_of, module_stack, mutated_inputs, source_line
from aotkit.testing import case as cases
from aotkit.testing.zoo import CASES

ROLES = ("forward", "backward", "joint")
PARTITIONS = ("min_cut", "nx_min_cut")


def graphs_in(fn, *args, backend="nop", partition="min_cut", **kwargs):
    fast = aotkit.compile(fn, backend=backend, partition=partition, check=False)
    fast(*args, **kwargs)
    return fast.explain(*args, **kwargs).all_graphs


def through_data(graphs):
    data = graphs_data(graphs)
    assert data is not None
    return rebuilt_graphs(json.loads(json.dumps(data)))


def inputs_of(gm, seed=0):
    """Values for a graph, some of which share memory where it says so."""
    generator = torch.Generator().manual_seed(seed)
    made = {}

    def value(known):
        if not isinstance(known, Tensor):
            return known
        storage = known.untyped_storage()
        if storage._cdata not in made:
            flat = torch.zeros(storage.nbytes(), dtype=torch.uint8).view(known.dtype)
            if flat.is_floating_point() or flat.is_complex():
                flat = torch.randn(flat.shape, generator=generator, dtype=flat.dtype)
            elif flat.dtype is torch.int32:  # pivots of a factorization, which count from 1
                flat += 1
            made[storage._cdata] = flat.to(known.device)
        return made[storage._cdata].as_strided(known.shape, known.stride(), known.storage_offset())

    return [value(node.meta["val"]) for node in gm.graph.find_nodes(op="placeholder")]


def run(gm):
    torch.manual_seed(7)
    inputs = inputs_of(gm)
    return [*gm(*inputs), *inputs]


def facts(gm):
    """What is noted of nodes, and which of them are in one memory."""
    roots = storage_roots(gm)
    keys = ("seq_nr", "partitioner_tag", "desc", "recompute", "saved_because", "stack_trace")
    notes = [
        (
            node.name,
            roots[node].name,
            [node.meta.get(key) for key in keys],
            source_line(node),
            module_stack(node),
            str(node.meta.get("original_aten")),
        )
        for node in gm.graph.nodes
    ]
    return notes, {node.name for node in mutated_inputs(gm.graph)}


def assert_same(graphs, back):
    for role in ROLES:
        before, after = getattr(graphs, role), getattr(back, role)
        assert (before is None) == (after is None)
        if before is not None:
            assert description(after) == description(before) is not None
            assert facts(after) == facts(before)
            assert graph_data(after) == graph_data(before)
            for got, want, again in zip(run(after), run(before), run(before), strict=True):
                # What attention on a GPU notes of a generator that it has not used is any number.
                if not isinstance(want, torch.Tensor) or torch.equal(want, again):
                    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    assert str(back) == str(graphs)
    assert render_text(back, width=300, colours=True) == render_text(graphs, width=300, colours=True)
    assert back._repr_markdown_() == graphs._repr_markdown_()
    assert render_html(back) == render_html(graphs)
    assert back.json() == graphs.json()
    assert saved_values(back) == saved_values(graphs)
    costs = [{node.name: cost for node, cost in recomputation_costs(g).items()} for g in (graphs, back)]
    assert costs[0] == costs[1]
    assert (back.dot(), back.model_explorer()) == (graphs.dot(), graphs.model_explorer())


@pytest.mark.thinned
@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_graphs_of_the_zoo(case, partition, device):
    fn, (_, args) = cases.build(case, device), cases.inputs(case, 0, device=device)
    found = graphs_in(fn, *args, partition=partition)
    assert found
    for graphs in found:
        if graphs_data(graphs) is None:
            assert None in [description(gm) for role in ROLES if (gm := getattr(graphs, role)) is not None]
        else:
            assert_same(graphs, through_data(graphs))


# Said inside of TorchDynamo, which hides it, of what goes from one graph to the next.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.thinned
@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("work", ["tutorial", "residual", pytest.param("gpt2", marks=pytest.mark.sweep)])
def test_graphs_of_workloads(work, partition):
    kwargs = {}
    if work == "tutorial":
        fn, args = workloads.tutorial, workloads.tutorial_inputs(8, 16)
    elif work == "residual":
        fn, args = workloads.ResidualLoss(4), [torch.randn(2, 4, 5, 5) for _ in range(2)]
    else:
        pytest.importorskip("transformers")
        fn, args, kwargs = workloads.gpt2(1, 64, 16), (), workloads.padded_texts(16)
    for graphs in graphs_in(fn, *args, partition=partition, **kwargs):
        assert_same(graphs, through_data(graphs))


def bert(transformers):
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=64, **sizes))
    words = torch.randint(64, (2, 8))
    return model, {"input_ids": words, "labels": words}


def resnet(transformers):
    config = transformers.ResNetConfig(embedding_size=4, hidden_sizes=[8, 8], depths=[1, 1], num_labels=3)
    config.problem_type = "single_label_classification"
    model = transformers.ResNetForImageClassification(config)
    return model, {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 2])}


@pytest.mark.sweep
@pytest.mark.parametrize("make", [bert, resnet])
def test_graphs_of_transformers(make):
    model, batch = make(pytest.importorskip("transformers"))
    for graphs in graphs_in(model, partition="nx_min_cut", **batch):
        assert_same(graphs, through_data(graphs))


def test_graphs_without_gradients():
    (graphs,) = graphs_in(lambda x: (x.t().sin(), x[1:]), torch.randn(3, 4))
    assert graphs.backward is None
    assert_same(graphs, through_data(graphs))


def test_what_backends_get_and_copy():
    """How they divide a graph, and that they keep a copy of an image in another layout."""
    (graphs,) = graphs_in(nn.Conv2d(3, 4, 3), torch.randn(2, 3, 6, 6, requires_grad=True))
    names = tuple(node.name for node in graphs.forward.graph.nodes if node.op == "call_function")
    regions = {
        "forward": Regions(("a", "b"), (Region("a", names[:1], ("x",), names[:1], "broken"),), {"y": ("", "no")})
    }
    inputs = [node.meta["val"] for node in graphs.backward.graph.find_nodes(op="placeholder")]
    moved = [x.to(memory_format=torch.channels_last) if x.dim() == 4 else x for x in inputs]
    graphs = dataclasses.replace(graphs, regions=regions, backward_inputs=moved)
    back = through_data(graphs)
    assert back.regions == regions
    assert COPIED in {value.reason for value in saved_values(graphs)}
    assert [value.stride() for value in back.backward_inputs] == [value.stride() for value in moved]
    assert_same(graphs, back)


def test_graphs_in_graphs(graphs_of):
    graphs = graphs_of(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), torch.randn(4))
    assert_same(graphs, through_data(graphs))


@pytest.fixture
def rebuilt(monkeypatch):
    """The graphs that have been rebuilt since."""
    found = []

    def counting(data, tables):
        found.append(graph_of(data, tables))
        return found[-1]

    monkeypatch.setattr(kept, "graph_of", counting)
    return found


def test_a_graph_is_rebuilt_when_it_is_looked_at(rebuilt):
    (graphs,) = graphs_in(lambda x: F.gelu(x).sum(), torch.randn(4, requires_grad=True))
    back = through_data(graphs)
    assert (back.name, back.backend, back.partition) == (graphs.name, "nop", "min_cut")
    assert (back.num_outputs, [*back.input_names], back.kernels) == (1, ["x"], None)
    assert rebuilt == []
    assert [back.backward, back.backward] == rebuilt * 2
    back.input_names = ("renamed",)
    again = copy.copy(back)
    assert "input renamed" in str(again)
    assert len(rebuilt) == 2
    kernels = object()
    assert dataclasses.replace(back, kernels=kernels).kernels is kernels
    assert back.forward is not again.forward  # which was copied before


def test_graphs_that_hold_values_are_no_data():
    (graphs,) = graphs_in(lambda x: x * 2, torch.randn(4, requires_grad=True))
    own = torch.ones(4)
    held = dataclasses.replace(graphs, backward=torch.fx.symbolic_trace(lambda x: x * own))
    assert graphs_data(held) is None


@pytest.mark.parametrize("key", ["name", "regions", "num_outputs"])
def test_other_data_are_refused(key):
    (graphs,) = graphs_in(lambda x: x * 2, torch.randn(4))
    data = graphs_data(graphs)
    del data[key]
    with pytest.raises(ValueError, match="not the data of graphs"):
        rebuilt_graphs(data)
