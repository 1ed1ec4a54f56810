"""`python -m aotkit bench partitioners`: what it cuts, what it says, and how it is asked."""

import json
from collections import Counter
from contextlib import nullcontext, suppress

import pytest
import torch
from functorch.compile import config
from torch import nn

import aotkit
from aotkit.benchmark import transformers_models
from aotkit.benchmark.capture import joint_graph
from aotkit.benchmark.models import DEFAULT_MODELS, MODELS, mlp
from aotkit.benchmark.partitioners import PartitionersReport, all_partitioners, compare, joint_of, min_cut_within
from aotkit.cli import main
from aotkit.joint.running import partition_copy
from aotkit.torch_private.fake_tensors import fake_tensors

BUDGETS = [f"min_cut budget {fraction}" for fraction in (0.9, 0.7, 0.5, 0.3, 0.1, 0.0)]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A model that takes little time."""
    monkeypatch.setitem(MODELS, "small", lambda: mlp(rows=64, layers=2, width=32))
    return "small"


def broken(joint, joint_inputs, **kwargs):
    raise RuntimeError("no such\ncut")


def missing():
    raise ImportError("No module named 'transformers'")


def test_the_table_has_a_row_for_each_partitioner_and_budget(small, capsys):
    assert main(["bench", "partitioners", "--models", small]) == 0
    title, heading, *rows = capsys.readouterr().out.splitlines()
    assert title == f"torch {torch.__version__}, decompositions: inductor, random numbers: shared"
    assert all(name in heading for name in PartitionersReport.heading)
    for name in [*aotkit.list_partitioners(), *BUDGETS]:
        (row,) = [row for row in rows if row.startswith(f"{small}  {name}  ")]
        assert len(row.split()) >= len(PartitionersReport.heading) - 3


def test_json_has_what_was_found_in_bytes_and_seconds(small, capsys):
    command = ["bench", "partitioners", "--models", small, "--partitions", "default,*budget 0.0", "--json"]
    assert main([*command, "--decompositions", "none", "--random", "torch"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["decompositions"], found["random"]) == (1, "none", "torch")
    assert {"name", "bandwidth", "rate", "launch"} == set(found["devices"][0])
    assert [row["partition"] for row in found["rows"]] == ["default", "min_cut budget 0.0"]
    default, recomputed = (row["evaluation"] for row in found["rows"])
    assert default["saved_bytes"] > recomputed["saved_bytes"]
    assert default["repeated_flops"] == 0 < recomputed["repeated_flops"]
    assert set(default["seconds"]) == {device["name"] for device in found["devices"]}
    assert all(row["seconds"] > 0 and row["problem"] is None for row in found["rows"])


def test_it_tells_how_long_each_took_to_choose(small, capsys):
    partitions = "default,min_cut,min_cut budget 0.5,nx_min_cut,nx_min_cut budget 0.5,nx_min_cut peak 0.9"
    assert main(["bench", "partitioners", "--models", small, "--partitions", partitions, "--json"]) == 0
    for row in json.loads(capsys.readouterr().out)["rows"]:
        if row["partition"] == "default":
            assert row["choice_seconds"] is None
        else:
            assert 0 < row["choice_seconds"] < row["seconds"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--models", "smal"], "no model is called 'smal'; there are mlp, gpt2,"),
        (["--models", "small,vgg"], "no model is called 'vgg'"),
        (["--partitions", "cut"], "no partitioner is called 'cut'; there are default,"),
    ],
)
def test_an_unknown_name_is_an_error_that_lists_the_known_ones(options, message, capsys):
    assert main(["bench", "partitioners", *options]) == 2
    assert message in capsys.readouterr().err


def test_a_partitioner_that_fails_has_a_row_that_says_why(small):
    report = compare([small], {"broken": broken, "default": aotkit.get_partitioner("default")})
    assert not report.passed
    assert [row.problem for row in report.rows] == ["RuntimeError: no such cut", None]
    assert "small: broken: RuntimeError: no such cut" in str(report)


def test_a_limit_below_an_impossible_one_is_not_tried(small):
    def impossible(*args, **keywords):
        raise aotkit.BudgetError("No.", 1)

    works, family = aotkit.get_partitioner("default"), "nx_min_cut budget"
    limits = {0.9: works, 0.5: impossible, 0.7: works, 0.3: broken, 0.1: broken}
    rows = {f"{family} {limit}": partition for limit, partition in limits.items()} | {f"{family}s 0.1": works}
    report = compare([small], rows)
    assert report.passed
    names = [row.partition for row in report.rows]
    assert names == [f"{family} 0.9", f"{family} 0.5", f"{family} 0.7", f"{family}s 0.1"]
    assert [row.impossible for row in report.rows] == [False, True, False, False]


def test_without_transformers_the_others_are_cut(small, monkeypatch):
    monkeypatch.setitem(MODELS, "gpt2", missing)
    report = compare(["gpt2", small], {"default": aotkit.get_partitioner("default")})
    assert report.passed
    assert [row.model for row in report.rows] == ["gpt2", small]
    assert "gpt2: needs transformers 5: pip install 'transformers>=5'" in str(report)
    assert report.json()["rows"][0]["evaluation"] is None


@pytest.mark.sweep
def test_each_partitioner_gets_the_same_graph_and_the_budget_ends_with_its_call(small):
    joint = joint_of(small, {})
    before = [(node.name, str(node.args)) for node in joint.gm.graph.nodes]
    for partition in all_partitioners().values():
        with suppress(aotkit.BudgetError):
            partition_copy(partition, joint)
        assert [(node.name, str(node.args)) for node in joint.gm.graph.nodes] == before
    assert config.activation_memory_budget == 1
    saved = [len(partition_copy(min_cut_within(b), joint)[0].graph.output_node().args[0]) for b in (0.9, 0.0)]
    assert saved[0] > saved[1]


@pytest.mark.sweep
def test_convolutional_models_are_traced_at_their_real_sizes():
    convolutions = torch.ops.aten.convolution.default
    for model, count, images in (("resnet50", 53, (32, 3, 224, 224)), ("unet", 23, (8, 3, 256, 256))):
        joint = joint_of(model, {})
        assert len(joint.gm.graph.find_nodes(op="call_function", target=convolutions)) == count
        assert joint.inputs[0][0].shape == images


@pytest.mark.sweep
def test_a_transformer_of_fake_tensors_gives_the_graph_of_real_ones():
    pytest.importorskip("transformers", minversion="5")

    def operators(context):
        with context:
            model = transformers_models.gpt2(layers=1, heads=2, width=32, batch=2, length=16)
        with transformers_models.single_sequences():
            joint = joint_graph(*model)
        return Counter(str(node.target) for node in joint.gm.graph.nodes)

    assert operators(fake_tensors()) == operators(nullcontext())


def test_a_module_without_gradients_has_no_joint_graph():
    with pytest.raises(ValueError, match="no joint graph"):
        joint_graph(nn.ReLU(), [torch.ones(3)])


def test_the_models_that_take_long_have_to_be_asked_for():
    assert set(MODELS) - set(DEFAULT_MODELS) == {"gpt2-xl", "small"}
