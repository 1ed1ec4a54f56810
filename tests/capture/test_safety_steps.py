"""Functions that train: forward, backward and the step of an optimizer, whose parameters Dynamo's graphs hold."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import aotkit


class Momentum(torch.optim.Optimizer):
    """One that Dynamo looks into."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state["momentum"] = torch.zeros_like(p)
            p.data.mul_(0.99)
            p.add_(state["momentum"].mul_(0.9).add_(p.grad), alpha=-0.1)


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": torch.optim.AdamW,
    "own": Momentum,
}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize(
    ("backend", "capture"),
    [
        ("nop", "auto"),
        ("nop", "dynamo"),
        ("inductor", "auto"),
        pytest.param("inductor", "dynamo", marks=pytest.mark.sweep),
    ],
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_each_call_is_one_step(optimizer, backend, capture):
    """Not one more for each run of the check."""

    def step(model, optimizer, x, y):
        loss = mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    eager = copy.deepcopy(model)
    ours, eagers = (OPTIMIZERS[optimizer](m.parameters()) for m in (model, eager))
    compiled = aotkit.compile(step, backend=backend, capture=capture)
    for _ in range(4):
        x, y = torch.randn(3, 4), torch.randn(3, 2)
        torch.testing.assert_close(compiled(model, ours, x, y), step(eager, eagers, x, y))
        torch.testing.assert_close(model.state_dict(), eager.state_dict())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("backend", ["nop", "inductor"])
def test_a_hidden_state_is_carried_over_though_its_graph_is_used_up(backend):
    """As in language models of pytorch/examples: not the step raises, but the backward pass of what it returns."""

    def step(model, x, hidden):
        hidden = torch.tanh(model(x) + hidden.detach())
        loss = hidden.square().mean()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None
        return loss.detach(), hidden

    model = nn.Linear(4, 8)
    eager = copy.deepcopy(model)
    compiled = aotkit.compile(step, backend=backend, strict=True)
    ours = eagers = torch.zeros(3, 8)
    for _ in range(3):
        x = torch.randn(3, 4)
        loss, ours = compiled(model, x, ours)
        want, eagers = step(eager, x, eagers)
        torch.testing.assert_close((loss, ours), (want, eagers))
        torch.testing.assert_close(model.state_dict(), eager.state_dict())


def test_a_rate_that_the_step_itself_changes():
    """TorchDynamo makes an input of it, and an output that is right for this value alone, to which its guards hold."""

    def step(p, state):
        with torch.no_grad():
            p -= state["rate"] * p.grad
        state["rate"] *= 0.5

    p, state = nn.Parameter(torch.ones(2)), {"rate": 0.5}
    p.grad = torch.ones(2)
    compiled = aotkit.compile(step, backend="nop", capture="dynamo", strict=True)
    for i in range(1, 4):
        compiled(p, state)
        assert state["rate"] == 0.5 ** (i + 1)
        assert p.tolist() == [0.5**i] * 2


def test_a_number_that_is_no_result_takes_other_values_in_the_check():
    """A compiler that keeps the first rate is found out."""
    rates = []

    def keeping(gm, example_inputs):
        def run(*inputs):
            rates.extend(x for x in inputs if x.dtype == torch.float64)
            return gm(*(rates[0] if x.dtype == torch.float64 else x for x in inputs))

        return run

    compiled = aotkit.compile(lambda p, rate: (p * rate).sin() + 1, backend=keeping, capture="dynamo")
    compiled(torch.ones(2), 0.5)
    with pytest.raises(aotkit.MismatchError, match="in a second run with other values"):
        compiled(torch.ones(2), 0.25)


def test_a_step_that_needs_gradients_which_copies_do_not_have():
    def step(p):
        with torch.no_grad():
            p -= 0.5 * p.grad

    compiled = aotkit.compile(step, backend="nop")
    p = nn.Parameter(torch.ones(2))
    p.grad = torch.ones(2)
    with pytest.warns(aotkit.EagerCallWarning, match="on copies of its inputs it raises TypeError"):
        compiled(p)
    compiled(p)
    assert compiled.explain(p).pieces == 1
    assert p.tolist() == [1 - 3 * 0.5] * 2


@pytest.mark.parametrize("check", [True, False])
def test_an_error_of_the_functions_own_changes_nothing_for_later_calls(check):
    compiled = aotkit.compile(torch.dot, backend="nop", strict=True, check=check)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="number of elements"):
            compiled(torch.ones(2), torch.ones(3))
        assert compiled(torch.ones(2), torch.ones(2)) == 2
        assert compiled.explain(torch.ones(2), torch.ones(2)).capture == "aot"


def test_what_has_no_derivative_runs_eagerly_as_before():
    compiled = aotkit.compile(torch.igamma, backend="nop")
    a = torch.tensor([1.0, 2.0], requires_grad=True)
    with pytest.warns(aotkit.EagerCallWarning, match="backward pass of what it returns raises NotImplementedError"):
        compiled(a, torch.ones(2))
    torch.testing.assert_close(compiled(a, torch.ones(2)), torch.igamma(a, torch.ones(2)))


def test_a_tensor_that_the_graph_holds_is_an_input():
    """Its wrong value is told, and it is itself what a call changes."""
    model = nn.Linear(2, 2)
    optimizer = Momentum(model.parameters())

    def wrong(gm, example_inputs):
        return lambda *inputs: [2 * r if isinstance(r, torch.Tensor) else r for r in gm(*inputs)]

    compiled = aotkit.compile(lambda: optimizer.step(), backend=wrong, capture="dynamo")
    model(torch.ones(1, 2)).sum().backward()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(aotkit.MismatchError, match="params___0 after the call"):
        compiled()
    torch.testing.assert_close(model.state_dict(), before)
