"""Random numbers drawn too often, not at all, in another order, or scaled wrongly."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from aotkit.testing.faults.planting import Run, Subject
from aotkit.testing.faults.rewriting import alter, calls, compute_by, set_argument

aten = torch.ops.aten
faults = Subject("randomness")


@faults.graph("dropout")
def dropout_not_rescaled(gm: GraphModule) -> None:
    """What dropout keeps is not divided by the probability to be kept."""
    alter(calls(gm, aten.relu)[0], torch.mul, 0.6)


@faults.graph("dropout")
def probability_to_keep(gm: GraphModule) -> None:
    """The probability to drop is taken for the one to keep."""
    set_argument(calls(gm, aten.native_dropout)[0], "p", 0.6)


@faults.graph("dropout", "backward")
def gradient_not_rescaled(gm: GraphModule) -> None:
    """The gradient of dropout is not divided by the probability to be kept."""
    set_argument(calls(gm, aten.native_dropout_backward)[0], "scale", 1.0)


@faults.graph("dropout", "backward")
def mask_drawn_again(gm: GraphModule) -> None:
    """The backward pass of dropout draws another mask."""
    alter(calls(gm, aten.native_dropout_backward)[0].all_input_nodes[1], _fresh_mask)


def _fresh_mask(mask: Tensor) -> Tensor:
    return torch.rand(mask.shape) < 0.6


@faults.graph("dropout", "backward")
def mask_shifted(gm: GraphModule) -> None:
    """The backward pass of dropout reads its mask one element too late."""
    alter(calls(gm, aten.native_dropout_backward)[0].all_input_nodes[1], torch.roll, 1)


@faults.graph("bernoulli")
def merged_draws(gm: GraphModule) -> None:
    """Two equal random draws become one."""
    first, second = calls(gm, aten.bernoulli)
    second.replace_all_uses_with(first)
    gm.graph.erase_node(second)


@faults.graph("bernoulli")
def merged_draws_with_the_right_state(gm: GraphModule) -> None:
    """The second of two equal random draws is done, but the first one's numbers are used."""
    first, second = calls(gm, aten.bernoulli)
    second.replace_all_uses_with(first)


@faults.graph("noise")
def uniform_for_normal(gm: GraphModule) -> None:
    """Uniform numbers are drawn instead of normal ones."""
    compute_by(calls(gm, aten.randn_like)[0], _uniform_like)


def _uniform_like(x: Tensor, **options: Any) -> Tensor:
    return torch.rand_like(x)


@faults.graph("noise")
def draws_in_other_order(gm: GraphModule) -> None:
    """Two draws happen in the other order."""
    calls(gm, aten.randn_like)[0].prepend(calls(gm, aten.rand)[0])


@faults.results("noise")
def one_draw_too_many(results: list[Any], arguments: Sequence[Any]) -> list[Any]:
    """One number is drawn and not used, so that the generator moves on."""
    torch.rand(())
    return results


@faults.run("noise")
def generator_left_alone(run: Run) -> Run:
    """The numbers are right, but the generator does not move on, so that the next call gets the same ones."""

    def call(*arguments: Any) -> list[Any]:
        state = torch.get_rng_state()
        results = list(run(*arguments))
        torch.set_rng_state(state)
        return results

    return call


@faults.run("dropout")
def seed_of_its_own(run: Run) -> Run:
    """A dropout draws from a generator of its own with a fixed seed."""

    def call(*arguments: Any) -> list[Any]:
        run(*arguments)
        end = torch.get_rng_state()
        torch.manual_seed(42)
        results = list(run(*arguments))
        torch.set_rng_state(end)
        return results

    return call


@faults.graph("dropout_twice")
def one_mask_for_two_dropouts(gm: GraphModule) -> None:
    """Two dropouts with equal probability use one mask."""
    second = calls(gm, aten.native_dropout)[1]
    first = calls(gm, aten.native_dropout)[0]
    compute_by(second, _dropped_by_mask_of, second.args[0], first)


def _dropped_by_mask_of(x: Tensor, other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    torch.native_dropout(x, 0.3, True)  # as many numbers as before
    return x * other[1] / 0.7, other[1]


@faults.graph("dropout")
def mask_of_one_row(gm: GraphModule) -> None:
    """All rows are dropped by the first row's mask."""
    compute_by(calls(gm, aten.native_dropout)[0], _dropped_by_row)


def _dropped_by_row(x: Tensor, p: float, train: bool) -> tuple[Tensor, Tensor]:
    mask = torch.native_dropout(x, p, train)[1][:1].expand_as(x)
    return x * mask / (1 - p), mask.clone()
