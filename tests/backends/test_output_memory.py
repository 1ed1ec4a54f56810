"""What a function computes is in memory of its own, also where a compiler sees that it is its input."""

import pytest
import torch

import aotkit

FUNCTIONS = {
    "zeros added": lambda x: x + x.new_zeros(4),
    "in place": lambda x: x.new_zeros(4).mul_(0.9).add_(x),
    "times ones": lambda x: x * torch.ones_like(x),
    "of a view": lambda x: x[1:] + x.new_zeros(3),
    "twice": lambda x: (x * 1.0, x + 0),
    "the same computed twice": lambda x: ((y := x.sin()), y * torch.ones_like(x)),
}


@pytest.mark.thinned
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fn", FUNCTIONS.values(), ids=FUNCTIONS)
def test_outputs_are_apart_from_inputs_and_each_other(fn, grad, backend, partitioner):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(4, requires_grad=grad, device=device)
    outputs = aotkit.compile(fn, backend=backend, partition=partitioner)(x)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    storages = {t.untyped_storage().data_ptr() for t in (x, *outputs)}
    assert len(storages) == 1 + len(outputs)
