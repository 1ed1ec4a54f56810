"""What a newcomer meets first: the README's code, `python -m aotkit demo`, and the lists of names."""

import functools
import json
import re
from pathlib import Path

import pytest
import torch

import aotkit
from aotkit import cli
from aotkit.benchmark import bench
from aotkit.benchmark.workloads import gpt2, padded_texts, tutorial_inputs
from aotkit.capture import BEST

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
(OUTPUT,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("backend", ["nop", pytest.param("inductor", marks=pytest.mark.sweep)])
def test_the_example_of_the_readme_runs_and_prints_what_stands_below_it(backend, capsys, monkeypatch):
    """Also as on a machine without a C++ compiler, where "auto" is `nop`: it takes a tenth of the time."""
    monkeypatch.setitem(BEST, "cpu", [[backend]])
    names = {}
    exec(BLOCKS[0], names)
    assert capsys.readouterr().out == OUTPUT.replace("'inductor'", f"'{backend}'")
    assert all(p.grad is not None for p in names["model"].parameters())


def test_the_plugins_of_the_readme_work():
    try:
        for block in BLOCKS[1:]:
            exec(block, {"aotkit": aotkit})
        x = torch.randn(3, requires_grad=True)
        assert aotkit.check(torch.sin, x, backend="mine", partition="cautious").passed
    finally:
        aotkit.unregister_backend("mine")
        aotkit.unregister_partitioner("cautious")


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 150


def test_the_readme_names_everything_that_is_registered():
    for name in [*aotkit.list_backends(), *aotkit.list_partitioners()]:
        assert f"| `{name}` |" in README


@pytest.fixture
def small(monkeypatch):
    """The demo with one backend and small inputs."""
    only = {"backends": ["nop"], "partitions": ["default"], "seconds": 0.0}
    monkeypatch.setattr("aotkit.benchmark.bench", lambda *args, **options: bench(*args, **{**options, **only}))
    monkeypatch.setattr("aotkit.benchmark.workloads.tutorial_inputs", functools.partial(tutorial_inputs, 8, 16))
    monkeypatch.setattr("aotkit.benchmark.workloads.gpt2", functools.partial(gpt2, layers=1, width=64))


# Said inside of TorchDynamo, which hides it, of what goes from one graph to the next.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_the_demo_shows_graphs_and_three_tables(small, capsys):
    assert cli.main(["demo"]) == 0
    shown, progress = capsys.readouterr()
    assert re.search(r"save for backward add_2, cos +\|", shown)
    assert "recomputed: 1 operation: cos" in shown
    for name in ("tutorial", "ResidualLoss", "GPT2LMHeadModel"):
        (table,) = re.findall(rf"^{name}: torch .*\n(backend .*\neager .*\nnop .* ok)$", shown, re.MULTILINE)
        assert table.count("MiB") + table.count("KiB") + table.count(" B ") == 2, "eager and nop say what they save"
        assert f"{name}: compiling nop x default" in progress
    (how,) = re.findall(r"captured by TorchDynamo, .* in 2 graphs: .*\n +stays in Python: (.*)$", shown, re.MULTILINE)
    assert "modeling_gpt2.py" in how


@pytest.mark.sweep
def test_the_demo_without_transformers_says_how_to_get_it(small, capsys, monkeypatch):
    def missing():
        raise ImportError("no module named transformers")

    monkeypatch.setattr("aotkit.benchmark.workloads.gpt2", missing)
    assert cli.main(["demo"]) == 0
    assert "pip install 'transformers>=5'" in capsys.readouterr().out


@pytest.mark.sweep
def test_the_demo_fails_if_a_backend_is_wrong(small, capsys, monkeypatch):
    def wrong(gm, example_inputs):
        return lambda *inputs: [x * 2 if x.is_floating_point() else x for x in gm(*inputs)]

    def missing():
        raise ImportError("no module named transformers")

    options = {"backends": [wrong], "partitions": ["default"], "seconds": 0.0}
    monkeypatch.setattr("aotkit.benchmark.workloads.gpt2", missing)
    monkeypatch.setattr("aotkit.benchmark.bench", lambda *args, **chosen: bench(*args, **{**chosen, **options}))
    assert cli.main(["demo"]) == 1
    assert "differs by up to" in capsys.readouterr().out


def test_the_texts_of_the_demo_are_padded_as_a_tokenizer_pads():
    texts = padded_texts(64)
    assert texts["attention_mask"].sum(1).tolist() == [64, 48]
    assert (texts["input_ids"][1, 48:] == 0).all()
    assert (texts["labels"] == -100).sum() == 16
    assert torch.equal(texts["labels"][0], texts["input_ids"][0])


@pytest.mark.parametrize(("kind", "names"), [("backends", "nop"), ("partitioners", "nx_min_cut")])
def test_names_are_listed_with_their_availability(kind, names, capsys):
    assert cli.main([kind]) == 0
    assert re.search(rf"^{names} +available$", capsys.readouterr().out, re.MULTILINE)


def test_an_unavailable_backend_is_listed_with_its_reason(capsys):
    aotkit.register_backend(
        "absent", aotkit.Backend(aotkit.get_backend("nop").fw_compiler, unavailable=lambda: "no fan.")
    )
    try:
        assert cli.main(["backends"]) == cli.main(["backends", "--json"]) == 0
    finally:
        aotkit.unregister_backend("absent")
    shown = capsys.readouterr().out
    text, _, listing = shown.partition("{")
    assert re.search(r"^absent +backend 'absent' cannot run here: no fan\.$", text, re.MULTILINE)
    (entry,) = [e for e in json.loads("{" + listing)["backends"] if e["name"] == "absent"]
    assert entry["available"] is False
    assert "no fan" in entry["reason"]
