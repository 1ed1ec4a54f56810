"""Copies and pickles of what `compile` returns: equal in behaviour, and apart."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import aotkit


def double(x):
    return x * 2


@aotkit.compile(backend="nop")
def decorated(x):
    return x * 3


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.factor = 2.0

    def forward(self, x):
        return self.linear(x) * self.factor


class HoldsAMethod(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.factor = 2.0
        self.compiled = aotkit.compile(self.body, backend="nop")

    def body(self, x):
        return self.linear(x) * self.factor

    def forward(self, x):
        return self.compiled(x)


class HasAMethod:
    factor = 2.0

    @aotkit.compile(backend="nop")
    def scaled(self, x):
        return x * self.factor


class CallableObject:
    def __init__(self):
        self.factor = 2.0
        self.graphs = 5

    def __call__(self, x):
        return x * self.factor


def pickled(value):
    return pickle.loads(pickle.dumps(value))


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": pickled, "torch.save": saved}
APART = {name: make for name, make in COPIES.items() if name != "copy"}


@pytest.fixture(params=COPIES)
def make_copy(request):
    return COPIES[request.param]


@pytest.fixture(params=APART)
def make_apart(request):
    return APART[request.param]


@pytest.fixture
def x():
    return torch.randn(2, 3)


@pytest.mark.thinned
@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("capture", ["aot", "dynamo"])
def test_function(make_copy, capture, used, x):
    f = aotkit.compile(double, backend="nop", capture=capture)
    if used:
        f(x)
    again = make_copy(f)
    assert type(again) is aotkit.CompiledFunction
    assert torch.equal(again(x), x * 2)
    assert torch.equal(again(x.double()), x.double() * 2)
    assert again.graphs(x).backend == "nop"
    assert repr(again) == repr(f)


def test_deepcopy_of_a_lambda(x):
    f = aotkit.compile(lambda x: x * 2, backend="nop")
    f(x)
    assert torch.equal(copy.deepcopy({"f": f})["f"](x), x * 2)


def test_decorated_function_is_pickled_by_name(x):
    decorated(x)
    assert pickled(decorated) is decorated
    assert torch.equal(copy.deepcopy(decorated)(x), x * 3)


def test_module(make_apart, x):
    compiled = aotkit.compile(Scale(), backend="nop")
    want = compiled(x)
    again = make_apart(compiled)
    assert isinstance(again, Scale)
    assert torch.equal(again(x), want)
    assert again.graphs(x).backend == "nop"
    again.factor = 3.0
    with torch.no_grad():
        again.linear.weight.zero_()
    assert torch.equal(compiled(x), want)
    assert torch.equal(again(x), again.linear.bias.expand(2, 3) * 3.0)


def test_shallow_copy_of_a_module_is_as_in_eager(x):
    def observe(module):
        twin = copy.copy(module)
        twin.factor = 3.0
        twin.added = nn.Parameter(torch.ones(3))
        return twin(x), module(x), twin.factor, module.factor, twin.linear is module.linear

    torch.manual_seed(0)
    want = observe(Scale())
    torch.manual_seed(0)
    torch.testing.assert_close(observe(aotkit.compile(Scale(), backend="nop")), want)


@pytest.mark.parametrize("used", [False, True])
def test_module_that_holds_a_compiled_method(make_apart, used, x):
    module = HoldsAMethod()
    if used:
        module(x)
    again = make_apart(module)
    again.factor = 3.0
    torch.testing.assert_close(again(x), module(x) * 1.5)
    with torch.no_grad():
        again.linear.weight.zero_()
    torch.testing.assert_close(again(x), module.linear.bias.expand(2, 3) * 3.0)


def test_bound_method(make_apart, x):
    instance = HasAMethod()
    method = instance.scaled
    method(x)
    again = make_apart(method)
    again.__self__.factor = 3.0
    assert torch.equal(again(x), x * 3)
    assert torch.equal(method(x), x * 2)


def test_callable_object(make_copy, x):
    original = CallableObject()
    f = aotkit.compile(original, backend="nop")
    f(x)
    again = make_copy(f)
    original.factor = 3.0
    assert torch.equal(again(x), x * 2)
    assert torch.equal(f(x), x * 3)
    assert f.graphs(x).backend == "nop"


def test_module_that_refers_to_its_compiled_self(make_apart, x):
    module = Scale()
    compiled = aotkit.compile(module, backend="nop")
    module.linear.__dict__["parent"] = compiled
    again = make_apart(compiled)
    assert again.linear.parent is not compiled
    assert again.linear.parent.linear is again.linear
    assert torch.equal(again(x), compiled(x))


def broken(gm, example_inputs):
    raise ValueError("no such instruction")


def test_options_are_kept(make_copy):
    again = make_copy(aotkit.compile(double, backend=broken, on_error="eager", check=False))
    with pytest.warns(aotkit.EagerFallbackWarning, match="no such instruction"):
        again(torch.ones(2))
