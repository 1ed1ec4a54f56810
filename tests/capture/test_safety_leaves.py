"""Results that have more than values: leaves of autograd that a function makes itself, attributes, kept gradients."""

import pytest
import torch
from torch import nn

import aotkit
from tests.agreement import agrees

WAYS = {
    "detached": lambda x: x.clone().detach().requires_grad_(),
    "made": lambda x: torch.ones(3, requires_grad=True),
    "parameter": lambda x: nn.Parameter(x.detach()),
    "the input's values": lambda x: x.detach().requires_grad_(),
}


@pytest.mark.parametrize("way", WAYS)
@agrees
def test_it_has_a_gradient_of_its_own(compile, way):
    """As the coordinates that siren's networks return beside what they make of them."""

    def f(x, w):
        coordinates = WAYS[way](x)
        return {"of": coordinates, "values": (coordinates * w).sin()}

    f = compile(f)
    for _ in range(2):
        w = torch.randn(3, requires_grad=True)
        found = f(torch.randn(3), w)
        yield found["of"].is_leaf
        yield torch.autograd.grad(found["values"].sum(), [found["of"], w], retain_graph=True)
        found["values"].sum().backward()
        yield found["of"].grad


def test_a_leaf_that_the_function_received_is_no_such_leaf():
    w = nn.Parameter(torch.randn(3))
    compiled = aotkit.compile(lambda x: (w, x, w * x), backend="nop", capture="aot")
    x = torch.randn(3, requires_grad=True)
    assert compiled(x)[0] is w
    assert compiled(x)[1] is x
    assert compiled.explain(x).capture == "aot"


def test_views_in_inference_mode_have_no_more_than_values():
    compiled = aotkit.compile(lambda x: x.sin().view(-1), backend="nop")
    with torch.inference_mode():
        x = torch.randn(2, 3)
        compiled(x)
        assert compiled.explain(x).capture == "aot"


def test_one_graph_cannot_have_it():
    def f(x):
        leaf = x.detach().requires_grad_()
        return leaf, leaf.sin()

    with pytest.raises(aotkit.TraceError, match=r"returns .* given a gradient of its own.*capture='dynamo'"):
        aotkit.compile(f, backend="nop", capture="aot")(torch.randn(3))


def noted(x):
    y = x.sin()
    y.aux = y.sum()
    return y


def retained(x):
    y = x.sin()
    if y.requires_grad:
        y.retain_grad()
    return y


def made_of_a_leaf(x):
    leaf = x.detach().requires_grad_()
    e = leaf.sin().sum()
    return e * torch.autograd.grad(e, leaf, retain_graph=True)[0]


def in_a_parameter(x):
    return nn.Parameter(x.detach() * 2, requires_grad=False)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize(
    ("function", "grad"),
    [
        *((f, grad) for f in (noted, retained, in_a_parameter) for grad in (True, False)),
        (made_of_a_leaf, False),
    ],
)
@agrees(eager=None)
def test_what_else_a_result_has(compile, function, grad):
    f = compile(function)
    for _ in range(2):
        x = torch.randn(3, requires_grad=grad)
        y = f(x)
        loss = (getattr(y, "aux", 1) * y).sum()
        if loss.requires_grad:
            loss.backward()
        yield x.grad, y.grad, isinstance(y, nn.Parameter), y.requires_grad, getattr(y, "aux", None)
