"""The command that times public models in real sizes has the models that it names; its table says what it measured."""

import importlib.util
import os

import pytest
import torch

import aotkit
from tests.models import zoo
from tests.models.speed.measure import measure, table
from tests.models.speed.models import MODELS
from tests.models.speed.together import measure_together

# Millions of parameters, as the papers or the models' pages have them.
PARAMETERS = {
    "gpt2": 124, "bert": 110, "t5-base": 223, "vit": 86, "swin-tiny": 28, "convnext-tiny": 29, "resnet50": 26,
    "efficientnet-b0": 5.3, "whisper-small": 244, "wav2vec2-base": 95,
}  # fmt: skip


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers not installed")
@pytest.mark.parametrize("name", PARAMETERS)
def test_models_have_the_sizes_of_their_names(name):
    from transformers.initialization import no_init_weights

    with no_init_weights():  # which takes long
        model = MODELS[name]().model
    model.tie_weights()
    count = sum(p.numel() for p in model.parameters())
    assert count / 1e6 == pytest.approx(PARAMETERS[name], rel=0.03)


def net():
    layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Dropout(0.1))
    return zoo.Training(layers, (torch.randn(4, 8),))


OPTIONS = {"device": "cpu", "dtype": torch.float32, "seconds": 0.0, "check": True}


@pytest.fixture
def broken():
    def compile(gm, example_inputs):
        raise RuntimeError("no such instruction\nin a long trace")

    aotkit.register_backend("broken", compile)
    yield
    aotkit.unregister_backend("broken")


def test_all_ways_of_one_model_are_timed_and_compared_with_torch_compile(broken):
    rows = measure(net, ["eager", "torch.compile", "nop/nx_min_cut", "broken"], **OPTIONS)
    assert all(row.wall and row.first > 0 and not row.error for row in rows[:3])
    assert [row.check for row in rows[:3]] == ["", "", "passed"]
    lines = table(("net", row) for row in rows).splitlines()
    assert "| 1.000 |" in lines[3]
    assert lines[4].endswith("| passed |")
    assert "no such instruction" in lines[5]


def test_a_name_that_there_is_not_is_an_error_before_anything_is_compiled():
    with pytest.raises(aotkit.UnknownNameError, match="no partitioner is named 'no such'"):
        measure(net, ["torch.compile", "nop/no such"], **OPTIONS)


def out_of_memory():
    os._exit(137)


@pytest.mark.sweep
def test_a_process_that_is_killed_does_not_end_the_others():
    found = dict(measure_together({"net": net, "killed": out_of_memory}, ["eager", "nop/min_cut"], OPTIONS))
    assert all(row.wall and not row.error for row in found["net"])
    assert [row.error for row in found["killed"]] == ["its process ended with exit code 137"] * 2
