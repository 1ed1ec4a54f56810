"""torch's minimum cut, which must neither merge two random draws nor repeat one."""

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import config
from torch import Tensor
from torch._functorch import partitioners

from aotkit.partitioners.min_cut import partition

BUDGETS = [1, 0.5, 0.1, 0]
# Of every workload and every draw: torch's cut without a budget, and with one that makes it choose.
QUICK = [b if b in (1, 0.1) else pytest.param(b, marks=pytest.mark.sweep) for b in BUDGETS]
DRAWS = {
    "randn_like": torch.randn_like,
    "rand_like": torch.rand_like,
    "randint_like": lambda x: torch.randint_like(x, 1000),
    "randn": lambda x: torch.randn(8, 8),
    "uniform_": lambda x: torch.empty_like(x).uniform_(),
    "normal_": lambda x: torch.empty_like(x).normal_(),
    "exponential_": lambda x: torch.empty_like(x).exponential_(),
    "geometric_": lambda x: torch.empty_like(x).geometric_(0.01),
    "cauchy_": lambda x: torch.empty_like(x).cauchy_(),
    "log_normal_": lambda x: torch.empty_like(x).log_normal_(),
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_(0.5),
    "bernoulli": lambda x: torch.bernoulli(torch.full_like(x, 0.5)),
    "poisson": lambda x: torch.poisson(torch.full_like(x, 50.0)),
    "multinomial": lambda x: torch.multinomial(torch.ones(8, 100), 8).float(),
    "native_dropout": lambda x: F.dropout(torch.ones_like(x)),
    "rrelu": lambda x: F.rrelu(-torch.ones_like(x), training=True),
}


@pytest.fixture(params=DRAWS)
def draw(request):
    return DRAWS[request.param]


@pytest.mark.thinned
@pytest.mark.parametrize("budget", QUICK[1:])
def test_computes_what_eager_computes_under_a_budget(split, workload, budget):
    with config.patch(activation_memory_budget=budget):
        graphs = split(partition, workload.function, *workload.inputs())
    assert not graphs.draws_in_both()


def test_two_draws_are_two_values(split, draw):
    """`draw(x) - draw(x)` is not 0, also where torch's list of random operators has a gap."""
    x = torch.randn(8, 8, requires_grad=True)
    with torch.no_grad():
        assert (draw(x.detach()) - draw(x.detach())).abs().max() > 0
    split(partition, lambda x: (draw(x.detach()) - draw(x.detach())) * x * x, x)


@pytest.mark.thinned
@pytest.mark.parametrize("budget", QUICK)
def test_gradient_sees_the_numbers_of_the_forward_pass(split, draw, budget):
    x, w = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    with config.patch(activation_memory_budget=budget):
        graphs = split(partition, lambda x, w: ((x @ w).sin() * draw(x.detach()).cos() * x).exp() @ w, x, w)
    assert not graphs.draws_in_both()


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_budget_still_recomputes_the_rest(split, budget):
    def function(x: Tensor, w: Tensor) -> Tensor:
        return F.dropout((x @ w).sin() @ w, 0.5).cos() @ w

    x, w = torch.randn(64, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    with config.patch(activation_memory_budget=budget):
        graphs = split(partition, function, x, w)
    items, mask = 64 * 8 * 4, 64 * 8
    assert graphs.saved_bytes <= {1: 4, 0.5: 3, 0.1: 1, 0: 1}[budget] * items + mask


@pytest.mark.parametrize("budget", BUDGETS)
def test_attention_without_dropout_may_be_recomputed(split, budget):
    """It carries the tag of random operators, but draws nothing."""
    x = torch.randn(2, 4, 32, 8, requires_grad=True)
    with config.patch(activation_memory_budget=budget):
        graphs = split(partition, lambda x: F.scaled_dot_product_attention(x, x, x).sin(), x)
    assert (graphs.saved_bytes == 0) == (budget < 1)


@pytest.mark.parametrize("budget", BUDGETS)
def test_checkpointed_dropout_is_replayed(run_checkpointed, budget):
    """The user asked for recomputation: torch keeps the generator's state, and saves less than the mask's bytes."""
    with config.patch(activation_memory_budget=budget):
        graphs = run_checkpointed(partition)
    assert "run_with_rng_state" in {str(node.target) for node in graphs.backward.graph.nodes}


def test_torchs_own_functions_are_left_as_they_were(split):
    before = (partitioners.fx_graph_cse, partitioners.choose_saved_values_set)
    with config.patch(activation_memory_budget=2), pytest.raises(RuntimeError, match="memory budget"):
        split(partition, lambda x: x.sin().cos(), torch.randn(3, requires_grad=True))
    assert (partitioners.fx_graph_cse, partitioners.choose_saved_values_set) == before
