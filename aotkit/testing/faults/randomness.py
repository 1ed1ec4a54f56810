"""Random numbers drawn too often, not at all, in another order, or scaled wrongly."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from aotkit.testing.faults.planting import Run, Subject
from aotkit.testing.faults.rewriting import calls

aten = torch.ops.aten
faults = Subject("randomness")

faults.operator("dropout", aten.relu).add(
    "dropout_not_rescaled", "What dropout keeps is not divided by the probability to be kept.", lambda x: x.relu() * 0.6
)
faults.argument("dropout", aten.native_dropout, p=0.6).add(
    "probability_to_keep", "The probability to drop is taken for the one to keep."
)
faults.argument("dropout", aten.native_dropout_backward, "backward", scale=1.0).add(
    "gradient_not_rescaled", "The gradient of dropout is not divided by the probability to be kept."
)
faults.operator("dropout", aten.native_dropout_backward, "backward").add(
    "mask_drawn_again",
    "The backward pass of dropout draws another mask.",
    lambda gradient, mask, scale: gradient * (torch.rand(mask.shape) < 0.6) * scale,
)
faults.operator("dropout", aten.native_dropout_backward, "backward").add(
    "mask_shifted",
    "The backward pass of dropout reads its mask one element too late.",
    lambda gradient, mask, scale: gradient * mask.roll(1) * scale,
)


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


faults.operator("noise", aten.randn_like).add(
    "uniform_for_normal", "Uniform numbers are drawn instead of normal ones.", lambda x, **options: torch.rand_like(x)
)
faults.graph("noise").add(
    "draws_in_other_order",
    "Two draws happen in the other order.",
    lambda gm: calls(gm, aten.randn_like)[0].prepend(calls(gm, aten.rand)[0]),
)


@faults.results("noise")
def one_draw_too_many(results: list[Any]) -> list[Any]:
    """One number is drawn and not used, so that the generator moves on."""
    torch.rand(())
    return results


@faults.run("noise")
def generator_left_alone(run: Run, arguments: list[Any], kept: list[Any]) -> Sequence[Any]:
    """The numbers are right, but the generator does not move on, so that the next call gets the same ones."""
    state = torch.get_rng_state()
    results = run(*arguments)
    torch.set_rng_state(state)
    return results


@faults.run("dropout")
def seed_of_its_own(run: Run, arguments: list[Any], kept: list[Any]) -> Sequence[Any]:
    """A dropout draws from a generator of its own with a fixed seed."""
    run(*arguments)
    end = torch.get_rng_state()
    torch.manual_seed(42)
    results = run(*arguments)
    torch.set_rng_state(end)
    return results


@faults.graph("dropout_twice")
def one_mask_for_two_dropouts(gm: GraphModule) -> None:
    """Two dropouts with equal probability use one mask."""
    first, second = calls(gm, aten.native_dropout)
    second.target, second.args = _dropped_by_mask_of, (second.args[0], first)


def _dropped_by_mask_of(x: Tensor, other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    torch.native_dropout(x, 0.3, True)  # as many numbers as before
    return x * other[1] / 0.7, other[1]


@faults.operator("dropout", aten.native_dropout)
def mask_of_one_row(x: Tensor, p: float, train: bool) -> tuple[Tensor, Tensor]:
    """All rows are dropped by the first row's mask."""
    mask = torch.native_dropout(x, p, train)[1][:1].expand_as(x)
    return x * mask / (1 - p), mask.clone()
