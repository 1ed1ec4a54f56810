"""What a function computes is in memory of its own, also where a compiler sees that it is its input."""

import pytest
import torch

import aotkit

FUNCTIONS = {
    "zeros added": lambda x: x + torch.zeros(4),
    "in place": lambda x: torch.zeros(4).mul_(0.9).add_(x),
    "times ones": lambda x: x * torch.ones(4),
    "of a view": lambda x: x[1:] + torch.zeros(3),
    "twice": lambda x: (x * 1.0, x + 0),
    "the same computed twice": lambda x: ((y := x.sin()), y * torch.ones(4)),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fn", FUNCTIONS.values(), ids=FUNCTIONS)
def test_outputs_are_apart_from_inputs_and_each_other(fn, grad, backend, partitioner):
    x = torch.randn(4, requires_grad=grad)
    outputs = aotkit.compile(fn, backend=backend, partition=partitioner)(x)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    storages = {t.untyped_storage().data_ptr() for t in (x, *outputs)}
    assert len(storages) == 1 + len(outputs)
