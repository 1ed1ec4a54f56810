"""What is alive during a training step: no more than eager, or torch.compile, would keep at the same time."""

import dataclasses

import pytest
import torch
from torch.nn import functional as F

import aotkit
from aotkit.launches.allocations import most_allocated
from aotkit.torch_private import native

MEBIBYTE = 2**20
LAYERS = 8
WAYS = {
    "nop": {"backend": "nop"},
    "inductor": {"backend": "inductor"},
    "dynamo": {"backend": "inductor", "capture": "dynamo"},
    "fuser": {"backend": "fuser"},
}


@pytest.fixture(params=WAYS)
def way(request):
    return {**WAYS[request.param], "check": False}


def peak(fn, *inputs):
    """MiB that a step takes beyond its inputs; the first ones compile."""

    def step():
        fn(*inputs).backward()

    for _ in range(2):
        step()
        for x in inputs:
            x.grad = None
    return most_allocated(step, torch.device("cpu")) / MEBIBYTE


def leaves(*shapes):
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def layers(x, *weights):
    for w in weights:
        x = (x @ w).sin()
    return x.sum()


def loss(x, weight):
    """Its gradient has the place of the logits, 4 MiB, which are saved."""
    return F.cross_entropy(x @ weight, torch.arange(len(x)))


LOGITS = (1024, 64), (64, 1024)


def test_each_saved_value_is_freed_when_backward_has_used_it(way):
    """Then the gradient of a layer comes in the place of what the layer saved, 1 MiB each."""
    inputs = leaves(*[(512, 512)] * (LAYERS + 1))
    assert 2 * LAYERS <= peak(aotkit.compile(layers, partition="default", **way), *inputs) <= peak(layers, *inputs)
    assert peak(layers, *inputs) < 2 * LAYERS + 2 < 3 * LAYERS  # that much if they were freed at the end


def test_the_gradient_of_a_parameter_is_not_copied(way):
    x, weight = torch.randn(8, 1024), *leaves((1024, 1024))  # 4 MiB
    assert 4 <= peak(aotkit.compile(lambda x, w: (x @ w).square().sum(), **way), x, weight) < 5


def test_gradients_are_written_in_the_place_of_saved_values(way):
    found = peak(aotkit.compile(loss, **way), *leaves(*LOGITS))
    # The fuser counts references in C++.
    copies = ["nop"] if native.library() is not None else ["nop", "fuser"]
    assert found >= 8 if way["backend"] in copies else 4 <= found < 5


def test_what_is_overwritten_is_there_for_another_backward_pass(way):
    x, weight = leaves((8, 32), (32, 64))
    want = torch.autograd.grad(loss(x, weight), (x, weight))
    result = aotkit.compile(loss, **way)(x, weight)
    for retain in (True, True, False):
        torch.testing.assert_close(torch.autograd.grad(result, (x, weight), retain_graph=retain), want)


def test_a_backend_that_does_not_say_so_overwrites_nothing():
    quiet = dataclasses.replace(aotkit.get_backend("inductor"), reuses_saved=False)
    found = peak(aotkit.compile(loss, backend=quiet, check=False), *leaves(*LOGITS))
    assert 8 <= found < 9


def test_code_that_overwrites_is_not_taken_from_inductors_cache_for_where_it_must_not():
    """Both have the same backward graph; what it reads is an output of the second."""

    def inside(x):
        y = x.exp()
        return y + (y.round() - y).detach()

    for fn in (inside, torch.exp):
        (x,) = leaves((5003,))
        y = aotkit.compile(lambda x, fn=fn: fn(x), backend="inductor", partition="default", check=False)(x)
        before = y.detach().clone()
        y.backward(torch.full_like(y, 2))
        assert torch.equal(y, before)


@pytest.mark.parametrize("layout", ["expanded", "padded"])
def test_copies_of_what_is_overwritten_have_its_strides(layout):
    from aotkit.runtime.donation import sparing_retained

    x = torch.randn(3, 1).expand(3, 4) if layout == "expanded" else torch.randn(3, 8)[:, 1:5]
    inputs = [x, x]
    sparing_retained(lambda given: given, [1])(inputs)  # outside of a backward pass, who knows what it is needed for
    assert inputs[0] is x
    assert inputs[1].data_ptr() != x.data_ptr()
    assert inputs[1].stride() == x.stride()
    assert torch.equal(inputs[1], x)
