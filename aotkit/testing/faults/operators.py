"""Wrong operators, constants, signs and operands in the forward graph."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule

from aotkit.testing.faults.planting import Subject, own
from aotkit.testing.faults.rewriting import alter, calls, compute_by, set_argument, skip, swap_arguments

aten = torch.ops.aten
faults = Subject("operators")


@faults.graph("pointwise_chain")
def sine_for_cosine(gm: GraphModule) -> None:
    """The second of two cosines is a sine."""
    compute_by(calls(gm, aten.cos)[1], torch.sin)


@faults.graph("gelu_mlp")
def approximate_gelu(gm: GraphModule) -> None:
    """Gelu is approximated by tanh."""
    set_argument(calls(gm, aten.gelu)[0], "approximate", "tanh")


@faults.graph("activations")
def leaky_slope(gm: GraphModule) -> None:
    """The slope of leaky_relu is 0.02 instead of 0.01."""
    set_argument(calls(gm, aten.leaky_relu)[0], "negative_slope", 0.02)


@faults.graph("activations")
def clamp_bound(gm: GraphModule) -> None:
    """The upper bound of clamp is missing."""
    set_argument(calls(gm, aten.clamp)[0], "max", None)


@faults.graph("factories")
def swapped_subtraction(gm: GraphModule) -> None:
    """a - b is computed as b - a."""
    swap_arguments(calls(gm, aten.sub)[0])


@faults.graph("masked_fill")
def negated_sum(gm: GraphModule) -> None:
    """A matrix product has the wrong sign."""
    alter(calls(gm, aten.mm)[0], torch.neg)


@faults.graph("checkpointed")
def untransposed_weight(gm: GraphModule) -> None:
    """A square weight is transposed before the product."""
    node = calls(gm, aten.mm)[0]
    compute_by(node, _product_with_transposed)


def _product_with_transposed(a: Tensor, b: Tensor) -> Tensor:
    return a @ b.t()


def _permute_cube(x: Tensor) -> Tensor:
    return x.permute(1, 2, 0).sin()


@faults.graph(own(_permute_cube, lambda new: (new.normal(3, 3, 3),)))
def inverse_permutation(gm: GraphModule) -> None:
    """A permutation of dimensions is applied backwards."""
    set_argument(calls(gm, aten.permute)[0], "dims", [2, 0, 1])


@faults.graph("views")
def roll_the_other_way(gm: GraphModule) -> None:
    """roll moves elements to the other side."""
    set_argument(calls(gm, aten.roll)[0], "shifts", [-1])


@faults.graph("views")
def slice_starts_one_later(gm: GraphModule) -> None:
    """x[:, ::2] begins at the second column."""
    node = next(n for n in calls(gm, aten.slice) if n.args[-1] == 2)
    set_argument(node, "start", 1)


@faults.graph("conv1d_padded")
def padding_on_both_sides(gm: GraphModule) -> None:
    """Two zeros before the sequence become one before and one after it."""
    set_argument(calls(gm, aten.constant_pad_nd)[0], "pad", [1, 1])


@faults.graph("masked_fill")
def mask_off_by_one(gm: GraphModule) -> None:
    """A causal mask hides the diagonal too."""
    set_argument(calls(gm, aten.triu)[0], "diagonal", 0)


def _padded_average(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 3, stride=1, padding=1)


@faults.graph(own(_padded_average, lambda new: (new.normal(1, 2, 5, 5),)))
def padding_not_counted(gm: GraphModule) -> None:
    """At the border, an average divides by the number of elements inside."""
    set_argument(calls(gm, aten.avg_pool2d)[0], "count_include_pad", False)


@faults.graph("complex_numbers")
def lost_conjugation(gm: GraphModule) -> None:
    """conj does nothing."""
    skip(calls(gm, aten._conj)[0])


@faults.graph("broadcasting")
def missing_broadcast(gm: GraphModule) -> None:
    """The first element of a row is added to all columns, instead of each to its own."""
    node = calls(gm, aten.add)[0]
    alter(node.all_input_nodes[1], _first_column)


def _first_column(x: Tensor) -> Tensor:
    return x[..., :1].expand_as(x)


@faults.graph("gather_and_scatter")
def duplicates_overwrite(gm: GraphModule) -> None:
    """index_put with accumulate=True keeps one of several values with the same index."""
    set_argument(calls(gm, aten.index_put)[0], "accumulate", False)


def _gather_from_the_end(x: Tensor, index: Tensor) -> Tensor:
    return x[index]


@faults.graph(own(_gather_from_the_end, lambda new: (new.normal(6, 4), new.integers(6, 5) - 3)))
def negative_indices_clamped(gm: GraphModule) -> None:
    """A negative index reads the first row instead of counting from the end."""
    alter(gm.graph.find_nodes(op="placeholder")[1], torch.relu)


def _ties(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    a = a.round()
    return torch.where(a > b.round(), a, b * 2), a.argmax(1)


ties = own(_ties, lambda new: (new.normal(6, 9), new.normal(6, 9)))


@faults.graph(ties)
def greater_or_equal(gm: GraphModule) -> None:
    """a > b holds where they are equal, too."""
    compute_by(calls(gm, aten.gt)[0], torch.ge)


@faults.graph(ties)
def last_of_equal_maxima(gm: GraphModule) -> None:
    """argmax returns the last of several maxima; the first is right."""
    compute_by(calls(gm, aten.argmax)[0], _last_argmax)


def _last_argmax(x: Tensor, dim: int) -> Tensor:
    return x.shape[dim] - 1 - x.flip(dim).argmax(dim)


@faults.results("several_losses")
def swapped_outputs(results: list[Any], arguments: Sequence[Any]) -> list[Any]:
    """The first two of several scalar outputs are exchanged."""
    return [results[1], results[0], *results[2:]]
