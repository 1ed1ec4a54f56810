"""`torch.compile(backend="aotkit")`, by the name that aotkit's entry point has."""

import copy

import pytest
import torch
from torch import nn

from aotkit import api
from tests.integrations.models import assert_same_parameters

OPTIONS = {"backend": "nop", "partition": "nx_min_cut"}


def layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2))


def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for n in (4, 4, 6):
        model(torch.ones(n, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture
def calls(monkeypatch):
    """The options of each graph that aotkit gets."""
    torch.compiler.reset()  # the same layers may have been compiled before
    seen = []
    original = api.torch_backend

    def spy(**options):
        seen.append(options)
        return original(**options)

    monkeypatch.setattr(api, "torch_backend", spy)
    return seen


def test_by_name_with_options(calls):
    model = layers()
    ours = copy.deepcopy(model)
    train(torch.compile(ours, backend="aotkit", options=OPTIONS))
    train(model)
    assert_same_parameters(ours, model)
    assert OPTIONS in calls


def test_as_the_default_backend(calls):
    if not hasattr(torch.compiler, "set_default_backend"):
        pytest.skip("this torch has no default backend to set")
    model = layers()
    ours = copy.deepcopy(model)
    torch.compiler.set_default_backend("aotkit")
    try:
        train(torch.compile(ours, options=OPTIONS))
    finally:
        torch.compiler.set_default_backend(None)
    train(model)
    assert_same_parameters(ours, model)
    assert OPTIONS in calls


def test_an_unknown_option_is_told():
    with pytest.raises(Exception, match="partitioner"):
        torch.compile(layers(), backend="aotkit", options={"partitioner": "min_cut"})(torch.ones(4, 8))
