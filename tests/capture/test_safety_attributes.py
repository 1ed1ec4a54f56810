"""What a function does to its inputs beside their values: gradients that it takes away or replaces, attributes."""

import pytest
import torch
from torch import nn

import aotkit


def drops_the_gradient(p):
    p -= 0.1 * p.grad
    p.grad = None


def drops_it_by_a_method(p):
    q = p.sub_(0.1 * p.grad)
    q.grad = None


def deletes_the_gradient(p):
    p *= 2
    del p.grad


def deletes_it_and_no_more(p):
    del p.grad
    return p * 2


def replaces_the_gradient(p):
    p *= 2
    p.grad = torch.zeros(3)
    return p.grad + 1


def reads_the_gradient(p):
    p -= 0.1 * p.grad
    return p.grad * 2, p is p.add_(1)


def zeroes_the_gradient(p):
    p -= 0.1 * p.grad
    p.grad.zero_()


def wants_no_gradient(p):
    p += p.grad
    p.requires_grad_(False)


def takes_a_note(p):
    p.note = 3
    return p * 2


def takes_a_note_of_the_result(p):
    q = p.mul_(2)
    q.note = 3
    return q.note


FUNCTIONS = [
    *(drops_the_gradient, drops_it_by_a_method, deletes_the_gradient, deletes_it_and_no_more, replaces_the_gradient),
    *(reads_the_gradient, zeroes_the_gradient, wants_no_gradient, takes_a_note, takes_a_note_of_the_result),
]


@pytest.mark.filterwarnings("ignore::aotkit.errors.EagerCallWarning")
@pytest.mark.parametrize("capture", ["auto", "dynamo"])
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_it_is_as_in_eager(function, inside, check, capture):
    """What an in-place operator returns is the input, to TorchDynamo another tensor: pytorch/pytorch#113160."""

    if inside:
        function = torch.no_grad()(function)

    def seen(fn):
        p = nn.Parameter(torch.arange(3.0))
        found = []
        for _ in range(2):
            p.requires_grad_()
            p.grad = torch.ones(3)
            with torch.set_grad_enabled(inside):
                result = fn(p)
            found.append((result, p.detach().clone(), p.grad, p.requires_grad, getattr(p, "note", None)))
        return found

    assert str(seen(aotkit.compile(function, backend="nop", check=check, capture=capture))) == str(seen(function))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_a_loop_over_parameters_is_compiled_and_takes_their_gradients_away():
    """As one writes an optimizer by hand. The next backward pass would add to what a step has used."""

    def step(model):
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None

    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    compiled = aotkit.compile(step, backend="nop", capture="dynamo", strict=True)
    for _ in range(3):
        model(torch.randn(2, 3)).sum().backward()
        want = [p.detach() - 0.1 * p.grad for p in model.parameters()]
        compiled(model)
        torch.testing.assert_close([*map(torch.detach, model.parameters())], want)
        assert all(p.grad is None for p in model.parameters())
    model(torch.randn(2, 3)).sum().backward()
    assert compiled.explain(model).pieces == 1
