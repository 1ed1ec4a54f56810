"""Under TorchDynamo, inputs that share memory are not those that a graph was compiled for: results stay eager's."""

import pytest
import torch

import aotkit

pytestmark = [
    pytest.mark.parametrize("check", [True, False]),
    pytest.mark.filterwarnings("ignore:.*share memory in another way:aotkit.EagerCallWarning"),
]


def add_after_doubling(x, y):
    x.mul_(2)
    return x + y


def dropped_after_doubling(x, y):
    x.mul_(2)
    return torch.nn.functional.dropout(x + y, 0.5)


def inputs(sharing):
    """(everything that is in memory, x, y)."""
    memory = torch.arange(1.0, 9.0)
    x = memory[:4]
    others = {"apart": torch.ones(4), "same": x, "equal view": memory[:4], "overlapping": memory[2:6]}
    return memory, x, others.get(sharing, memory[4:])


SHARING = ["apart", "same", "overlapping", "apart", "equal view", "beside", "overlapping", "same"]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("turn", range(3))
def test_every_way_of_sharing_in_turn(turn, dynamic, check):
    compiled = aotkit.compile(add_after_doubling, backend="nop", capture="dynamo", check=check, dynamic=dynamic)
    for sharing in SHARING[turn:] + SHARING[:turn]:
        (memory, *given), (wanted_memory, *wanted) = inputs(sharing), inputs(sharing)
        torch.testing.assert_close(compiled(*given), add_after_doubling(*wanted))
        assert torch.equal(memory, wanted_memory)


def test_graphs_that_run_uncompiled_are_told(check):
    """`explain` says so, `strict` makes it an error."""
    compiled, strict = (
        aotkit.compile(add_after_doubling, backend="nop", capture="dynamo", check=check, strict=strict)
        for strict in (False, True)
    )
    for f in (compiled, strict):
        _, *given = inputs("apart")
        f(*given)
        assert f.explain(*given).eager is None
    # Of one storage, at places that Dynamo has no guards for.
    memory = torch.arange(1.0, 9.0)
    given = memory[:4], memory[2:6]
    assert "share memory in another way" in compiled.explain(*given).eager
    with pytest.raises(aotkit.TraceError, match="share memory in another way"):
        strict(*given)


@pytest.mark.parametrize("random", ["shared", "torch"])
def test_with_a_seed_among_the_inputs(random, check):
    compiled = aotkit.compile(dropped_after_doubling, backend="nop", capture="dynamo", check=check, random=random)
    for sharing in SHARING:
        (memory, *given), (wanted_memory, *wanted) = inputs(sharing), inputs(sharing)
        found, sums = compiled(*given), add_after_doubling(*wanted)
        kept = found != 0
        torch.testing.assert_close(found[kept], 2 * sums[kept])
        assert torch.equal(memory, wanted_memory)


def test_gradients_of_inputs_that_become_one(check):
    def product(x, y):
        return (x * y).sum() * 3

    compiled = aotkit.compile(product, backend="nop", capture="dynamo", check=check)
    x, y = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    for pair in ((x, y), (x, x), (y, x), (y, y)):
        leaves = list(dict.fromkeys(pair))
        found = torch.autograd.grad(compiled(*pair), leaves)
        torch.testing.assert_close(found, torch.autograd.grad(product(*pair), leaves))


def test_parameters_that_become_tied(check):
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = (torch.nn.Buffer(torch.arange(4.0) + i) for i in range(2))

        def forward(self, x):
            self.a.add_(1)
            return x * self.b

    model, eager = Scaled(), Scaled()
    compiled = aotkit.compile(model, backend="nop", capture="dynamo", check=check)
    for each in range(3):
        torch.testing.assert_close(compiled(torch.ones(4)), eager(torch.ones(4)))
        if each == 0:
            model.b, eager.b = model.a, eager.a
    torch.testing.assert_close(compiled.state_dict(), eager.state_dict())
