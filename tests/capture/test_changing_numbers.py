"""Numbers that change from call to call, steps and temperatures, become inputs of one graph, wherever they are kept."""

import pytest
import torch
from torch import nn

import aotkit
from tests.agreement import agrees

SETTINGS = {"weight": 1.0}
STEPS = range(10)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.epoch = 0
        self.calls = 0

    def forward(self, x, step=1, temperature=1.0):
        return (self.linear(x) * step * (self.epoch + 1) / temperature).softmax(-1)


class Counting(Scaled):
    def forward(self, x):
        self.calls += 1
        return self.linear(x) * (2 if self.calls > 3 else 1)


def of_global(x):
    return x.tanh() * SETTINGS["weight"]


def argument(f, model, x, i):
    return f(x, i)


def float_argument(f, model, x, i):
    return f(x, temperature=0.9**i)


def attribute(f, model, x, i):
    model.epoch = i
    return f(x)


def float_attribute(f, model, x, i):
    model.epoch = i / 7
    return f(x)


@pytest.mark.thinned
@pytest.mark.parametrize("call", [argument, float_argument, attribute, float_attribute])
@agrees(exact=False)
def test_results_and_gradients(compile, call):
    model = Scaled()
    f = compile(model)
    for i in STEPS:
        x = torch.randn(3, 4, requires_grad=True)
        y = call(f, model, x, i)
        y.square().sum().backward()
        yield y, x.grad, [p.grad for p in model.parameters()]


@pytest.mark.thinned
@pytest.mark.parametrize("call", [argument, float_argument, attribute, float_attribute])
@pytest.mark.parametrize("capture", ["auto", "dynamo"])
def test_few_graphs_serve_all_values(call, capture):
    model, x = Scaled(), torch.randn(3, 4)
    f = aotkit.compile(model, backend="nop", capture=capture)
    for i in STEPS:
        call(f, model, x, i)
    explanation = f.explain(x)
    assert explanation.entries <= 3
    if capture == "auto":
        assert "keeps changing" in explanation.handed_over


def test_a_counter_of_calls():
    model, x = Counting(), torch.randn(3, 4)
    f = aotkit.compile(model, backend="nop")
    for i in STEPS:
        assert torch.allclose(f(x), model.linear(x) * (1 if i < 3 else 2))
        assert model.calls == i + 1
    assert f.explain(x).entries <= 4


def test_a_global(monkeypatch):
    f, x = aotkit.compile(of_global, backend="nop"), torch.randn(3)
    for i in STEPS:
        monkeypatch.setitem(SETTINGS, "weight", 1 / (1 + i))
        assert torch.equal(f(x), of_global(x))
    assert f.explain(x).entries <= 3


@pytest.mark.parametrize("options", [{"capture": "aot"}, {"dynamic": False}])
def test_constants_stay_constants_if_asked(options):
    f, x = aotkit.compile(lambda x, n: x * n, backend="nop", **options), torch.randn(3)
    for n in STEPS:
        assert torch.equal(f(x, n), x * n)
    assert f.explain(x, 1).capture == "aot"
    assert f.explain(x, 1).entries == len(STEPS)


def test_a_few_values_are_traced_directly():
    f, x = aotkit.compile(lambda x, n: x * n, backend="nop"), torch.randn(3)
    for n in (1, 2, 3, 3, 2, 1):
        assert torch.equal(f(x, n), x * n)
    assert f.explain(x, 1).capture == "aot"
