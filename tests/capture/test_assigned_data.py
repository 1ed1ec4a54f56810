"""Functions that assign to the `.data` of their tensors, as layers with weights of limited norm do in each forward."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

import aotkit


def renormed(m, x):
    m.weight.data = torch.renorm(m.weight.data, p=2, dim=0, maxnorm=0.5)
    return m(x)


def not_read_afterwards(m, x):
    m.weight.data = m.weight.data * 2
    return m.bias * x


def read_before(m, x):
    y = m(x)
    m.weight.data = m.weight.data * 2
    return y.sin()


def read_before_and_afterwards(m, x):
    y = x * m.weight
    m.weight.data = m.weight.data * 2
    return (y * m.weight).sin()


def returned(m, x):
    m.weight.data = m.weight.data * 2
    return m(x) + m.weight, m.weight.data


def to_an_argument(m, x):
    m.weight.data = x.detach()
    return m(x)


def to_a_view_of_an_argument(m, x):
    m.weight.data = x.detach().t()
    return m(x)


def transposed_in_memory(m, x):
    m.weight.data = (x * 2).t().contiguous().t()
    return m(x)


def twice(m, x):
    m.weight.data = m.weight.data * 2
    m.weight.data = m.weight.data + x
    return m(x)


def exchanged(m, x):
    weight = m.weight.data
    m.weight.data = m.other.data
    m.other.data = weight
    return linear(m(x), m.other)


def returned_itself(m, x):
    m.weight.data = m.weight.data * 2
    return m.weight


def kept_for_backward(m, x):
    m.weight.data = m.weight.data * 2
    return m.weight.sin() * x


def kept_for_backward_from_before(m, x):
    y = m.weight.sin() * x
    m.weight.data = m.weight.data * 2
    return y


def a_buffer(m, x):
    m.mean.data = m.mean.data * 0.9 + x.detach().mean(0)
    return m(x) * m.mean


def a_buffer_changed_in_place_besides(m, x):
    m.weight.data = m.weight.data * 2
    m.mean.add_(1)
    return m(x) * m.mean


FUNCTIONS = [
    renormed, not_read_afterwards, read_before, read_before_and_afterwards, returned, to_an_argument, twice, exchanged,
    returned_itself, kept_for_backward, kept_for_backward_from_before, a_buffer, a_buffer_changed_in_place_besides,
]  # fmt: skip
TRANSPOSING = [to_a_view_of_an_argument, transposed_in_memory]


class Layer(nn.Linear):
    def __init__(self):
        super().__init__(3, 3)
        self.other = nn.Parameter(torch.randn(3, 3))
        self.register_buffer("mean", torch.zeros(3))


def outputs_of(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


def step(fn, m, x, accumulate):
    """What a step gives and leaves: values, strides, and which tensors share memory."""
    m.zero_grad()
    outputs = outputs_of(fn(m, x))
    wanted = [x, *m.parameters()]
    if not torch.is_grad_enabled():
        gradients = []
    elif accumulate:
        outputs[0].sum().backward()
        gradients = [t.grad for t in wanted]
    else:
        gradients = torch.autograd.grad(outputs[0].sum(), wanted, allow_unused=True)
    with torch.no_grad():
        for p in m.parameters():  # as an optimizer does
            p.sub_(0.1)
    tensors = [*outputs, *gradients, *m.parameters(), *m.buffers()]
    addresses = [t.data_ptr() for t in (x, *outputs, *m.parameters(), *m.buffers())]
    values = [None if t is None else (t.detach().clone(), t.stride(), t.requires_grad) for t in tensors]
    return values, [addresses.index(a) for a in addresses]


@pytest.mark.thinned
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(("backend", "partition"), [("nop", "nx_min_cut"), ("inductor", "min_cut")])
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_steps_are_as_in_eager(fn, backend, partition, grad):
    compare(fn, grad, backend=backend, partition=partition, strict=True)


@pytest.mark.filterwarnings("ignore:.*other strides than when TorchDynamo captured it:aotkit.EagerCallWarning")
@pytest.mark.parametrize("backend", ["nop", "inductor"])
@pytest.mark.parametrize("fn", TRANSPOSING, ids=lambda fn: fn.__name__)
def test_steps_that_change_strides_are_as_in_eager(fn, backend):
    """Torch 2.11 accepts the next call as one for the same graph; torch.compile with Inductor fails in each version."""
    compare(fn, True, backend=backend)


def compare(fn, grad, **options):
    m = Layer()
    other = copy.deepcopy(m)
    compiled = aotkit.compile(fn, **options)
    with torch.set_grad_enabled(grad):
        for accumulate in (True, False, True):
            x = torch.randn(3, 3, requires_grad=True)
            y = x.detach().clone().requires_grad_()
            found, wanted = step(compiled, m, x, accumulate), step(fn, other, y, accumulate)
            torch.testing.assert_close(found, wanted)


def test_hooks_on_a_parameter_outlive_it():
    """`set_`, which AOTAutograd has for this, would give the parameter another node that accumulates its gradient."""
    m, seen = Layer(), []
    m.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p))
    compiled = aotkit.compile(renormed, backend="nop")
    for _ in range(3):
        compiled(m, torch.randn(3, 3)).sum().backward()
    assert len(seen) == 3


def test_what_was_saved_before_is_noticed_when_it_changes():
    m, x = Layer(), torch.randn(3, 3, requires_grad=True)
    y = m.weight.sin()
    compiled = aotkit.compile(renormed, backend="nop")
    loss = compiled(m, x).sum() + y.sum()
    with torch.no_grad():
        m.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("partition", ["default", "min_cut", "nx_min_cut"])
@pytest.mark.parametrize("backend", ["nop", "inductor"])
@pytest.mark.parametrize("fn", [renormed, kept_for_backward], ids=lambda fn: fn.__name__)
def test_gradients_are_those_of_the_values_in_the_forward(fn, backend, partition):
    """Where eager raises, as what it keeps has changed: torch.compile gives gradients of the changed values."""
    m, x = Layer(), torch.randn(3, 3, requires_grad=True)
    (want,) = torch.autograd.grad(fn(copy.deepcopy(m), x).sum(), x)
    y = aotkit.compile(fn, backend=backend, partition=partition)(m, x)
    with torch.no_grad():
        m.weight.zero_()
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], want)


def test_memory_that_is_no_longer_shared_is_told():
    def shared(m, x):
        m.weight.data = m.other.data
        with torch.no_grad():
            m.weight.mul_(2)
        return m(x) + m.other

    with pytest.raises(aotkit.MismatchError, match=r"does not share memory with input m\."):
        aotkit.compile(shared, backend="nop")(Layer(), torch.randn(3, 3))
