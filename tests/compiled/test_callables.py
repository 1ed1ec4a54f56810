"""What `compile` makes of callables that are neither plain functions nor plain modules."""

import asyncio

import pytest
import torch
from torch import nn

import aotkit


def test_above_a_static_method():
    class Owner:
        @aotkit.compile(backend="nop")
        @staticmethod
        def sine(x):
            return x.sin()

    x = torch.randn(4)
    assert torch.equal(Owner.sine(x), x.sin())
    assert torch.equal(Owner().sine(x), x.sin())
    assert Owner.sine.explain(x).capture == "aot"


def test_above_a_class_method():
    class Owner:
        factor = 2.0

        @aotkit.compile(backend="nop")
        @classmethod
        def scaled(cls, x):
            return x * cls.factor

    class Derived(Owner):
        factor = 3.0

    x = torch.randn(4)
    assert torch.equal(Owner.scaled(x), x * 2)
    assert torch.equal(Derived().scaled(x), x * 3)


def test_a_coroutine_function_computes_when_it_is_awaited():
    @aotkit.compile(backend="nop")
    async def sine(x):
        return x.sin()

    async def twice(x):
        return await sine(x) * 2

    x = torch.randn(4)
    with pytest.warns(aotkit.EagerCallWarning, match="coroutine function"):
        assert torch.equal(asyncio.run(twice(x)), x.sin() * 2)


@pytest.mark.parametrize("capture", ["auto", "dynamo"])
def test_a_generator_function_goes_on_where_it_was(capture):
    @aotkit.compile(backend="nop", capture=capture)
    def scaled(x):
        factor = 1.0
        while True:
            factor = yield x * factor

    x = torch.randn(4)
    with pytest.warns(aotkit.EagerCallWarning, match="generator function"):
        values = scaled(x)
    assert torch.equal(next(values), x)
    assert torch.equal(values.send(3.0), x * 3)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::aotkit.EagerCallWarning")  # TorchDynamo may find nothing else to compile
def test_parts_that_torch_jit_has_compiled():
    scripted = torch.jit.script(nn.Linear(4, 4))
    model, x = nn.Sequential(scripted, nn.Tanh()), torch.randn(3, 4)
    compiled = aotkit.compile(model, backend="nop")
    torch.testing.assert_close(compiled(x), model(x))
    compiled(x).sum().backward()
    assert scripted.weight.grad is not None
    with pytest.raises(TypeError, match=r"compiled by torch\.jit\. Compile the module that it was made of"):
        aotkit.compile(scripted)


def test_what_is_printed_is_printed_in_each_call(capsys):
    @aotkit.compile(backend="nop")
    def told(x):
        print("shape", list(x.shape))
        return x.sin()

    x = torch.randn(4)
    told(x)
    capsys.readouterr()
    for _ in range(2):
        assert torch.equal(told(x), x.sin())
        assert capsys.readouterr().out == "shape [4]\n"


def test_the_same_seed_as_before_is_a_seed():
    @aotkit.compile(backend="nop", random="torch")
    def projected(x):
        torch.manual_seed(3)
        return x @ torch.rand(4, 2)

    x = torch.randn(3, 4)
    torch.manual_seed(3)
    expected = x @ torch.rand(4, 2)
    for _ in range(2):
        torch.manual_seed(3)
        torch.rand(5)
        torch.testing.assert_close(projected(x), expected)
