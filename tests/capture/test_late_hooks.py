"""Hooks that a part of a module gets, or loses, after TorchDynamo has captured it."""

import pytest
import torch
from torch import nn

import aotkit


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.outer(self.inner(x).relu())


@pytest.fixture
def counted():
    def compiler(gm, example_inputs):
        found.append(gm)
        return gm

    found = []
    return found, compiler


REGISTER = {
    "forward": lambda part, hook: part.register_forward_hook(lambda module, args, out: hook(out)),
    "forward before": lambda part, hook: part.register_forward_pre_hook(lambda module, args: (hook(args[0]),)),
}


@pytest.mark.thinned
@pytest.mark.parametrize("kind", REGISTER)
@pytest.mark.parametrize("part", ["inner", "outer"])
def test_they_run(counted, kind, part):
    found, backend = counted
    m, x = Model(), torch.randn(3, 4)
    fast = aotkit.compile(m, backend=backend, capture="dynamo")
    assert torch.equal(fast(x), m(x))
    handle = REGISTER[kind](getattr(m, part), lambda value: value * 3)
    for _ in range(2):
        assert torch.equal(fast(x), m(x))
    compiled = len(found)
    handle.remove()
    assert torch.equal(fast(x), m(x))
    REGISTER[kind](m.inner, lambda value: value - 1)
    assert torch.equal(fast(x), m(x))
    assert len(found) > compiled


def test_those_of_others_compile_nothing_again(counted):
    found, backend = counted
    m, x = Model(), torch.randn(3, 4, requires_grad=True)
    m.inner.register_forward_hook(lambda module, args, out: out * 2)
    fast = aotkit.compile(m, backend=backend, capture="dynamo")
    fast(x)
    compiled = len(found)
    nn.Linear(2, 2).register_forward_hook(lambda module, args, out: out)
    x.register_hook(lambda gradient: gradient)
    assert torch.equal(fast(x), m(x))
    assert len(found) == compiled
