"""Wrong gradients, from backward graphs and from what runs them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from aotkit.testing.faults.planting import Subject, own
from aotkit.testing.faults.rewriting import (
    alter,
    calls,
    compute_by,
    results_of,
    set_argument,
    set_results,
    skip,
    swap_results,
)

aten = torch.ops.aten
faults = Subject("gradients")


def _products(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin() * y.cos() + x * z, x.exp()


three = own(_products, lambda new: (new.normal(5, 5), new.normal(5, 5), new.normal(5, 5)))


@faults.graph(three, "backward")
def swapped_gradients(gm: GraphModule) -> None:
    """Two inputs get each other's gradient."""
    swap_results(gm, 1, 2)


@faults.graph(three, "backward")
def gradient_to_the_next_input(gm: GraphModule) -> None:
    """Each gradient goes to the next input."""
    results = results_of(gm)
    set_results(gm, [results[-1], *results[:-1]])


@faults.graph(three, "backward")
def missing_second_use(gm: GraphModule) -> None:
    """Of an input that is used several times, the last use is left out."""
    skip(calls(gm, aten.add)[-1])


@faults.graph(three, "backward")
def doubled_term(gm: GraphModule) -> None:
    """One of the terms of a gradient is counted twice."""
    set_argument(calls(gm, aten.add)[0], "alpha", 2)


@faults.graph(three, "backward")
def lost_sign(gm: GraphModule) -> None:
    """The derivative of cos is sin."""
    skip(calls(gm, aten.neg)[0])


@faults.graph(three, "backward")
def second_tangent_ignored(gm: GraphModule) -> None:
    """The gradient of the second output does not flow back."""
    alter(gm.graph.find_nodes(op="placeholder")[-1], torch.zeros_like)


@faults.arguments(three, "backward")
def uniform_tangents(arguments: list[Any]) -> list[Any]:
    """The gradient of an output is taken to be the same for all its elements."""
    return [*arguments[:-2], *(t.flatten()[0].expand_as(t) for t in arguments[-2:])]


@faults.arguments(three, "backward")
def tangent_in_other_order(arguments: list[Any]) -> list[Any]:
    """The gradient of a square output is read column by column."""
    return [*arguments[:-1], arguments[-1].t()]


@faults.results(three, "backward")
def gradient_of_none(results: list[Any], arguments: Sequence[Any]) -> list[Any]:
    """An input that needs a gradient gets none."""
    return [results[0], None, results[2]]


@faults.results(three, "backward")
def gradient_of_zeros(results: list[Any], arguments: Sequence[Any]) -> list[Any]:
    """The gradient of one of several inputs is zero."""
    return [results[0], torch.zeros_like(results[1]), results[2]]


@faults.results(three, "backward")
def gradient_dtype(results: list[Any], arguments: Sequence[Any]) -> list[Any]:
    """A gradient is float64 instead of float32."""
    return [results[0].double(), *results[1:]]


@faults.results(three, "backward")
def tail_of_a_gradient(results: list[Any], arguments: Sequence[Any]) -> list[Any]:
    """What a gradient has beyond a multiple of 16 elements is zero."""
    tail = results[2].flatten().clone()
    tail[tail.numel() // 16 * 16 :] = 0
    return [*results[:2], tail.view_as(results[2])]


def _frozen(x: Tensor, w: Tensor) -> Tensor:
    return x * w


@faults.results(own(_frozen, lambda new: (new.normal(4, 3), new.values(4, 3))), "backward")
def gradient_for_a_frozen_input(results: list[Any], arguments: Sequence[Any]) -> list[Any]:
    """An input that needs no gradient gets one."""
    return [results[0], results[0]]


@faults.graph("several_losses", "backward")
def scale_of_a_mean(gm: GraphModule) -> None:
    """The gradient of a mean is divided by n - 1."""
    node = calls(gm, aten.div)[0]
    node.update_arg(1, 14)


@faults.graph("broadcasting", "backward")
def mean_over_a_broadcast(gm: GraphModule) -> None:
    """The gradient of a broadcast input is averaged, not summed."""
    compute_by(calls(gm, aten.sum)[0], torch.mean)


@faults.graph("broadcasting", "backward")
def first_of_a_broadcast(gm: GraphModule) -> None:
    """The gradient of a broadcast input comes from the first place only."""
    compute_by(calls(gm, aten.sum)[1], _first)


def _first(x: Tensor, dim: list[int], keepdim: bool) -> Tensor:
    return x.narrow(dim[0], 0, 1)


def _twice(table: Tensor, index: Tensor) -> Tensor:
    return torch.nn.functional.embedding(index, table).sin()


@faults.graph(own(_twice, lambda new: (new.normal(4, 6), new.integers(4, 9))), "backward")
def scaled_by_frequency(gm: GraphModule) -> None:
    """The gradient of a row that is looked up several times is averaged."""
    set_argument(calls(gm, aten.embedding_dense_backward)[0], "scale_grad_by_freq", True)


def _relu_at_zero(x: Tensor) -> Tensor:
    return x.relu()


@faults.graph(own(_relu_at_zero, lambda new: (new.given(-1.0, 0.0, 2.0, 0.0, -3.0),)), "backward")
def gradient_of_relu_at_zero(gm: GraphModule) -> None:
    """relu passes the gradient on where its input is exactly zero."""
    set_argument(calls(gm, aten.threshold_backward)[0], "threshold", -1e-30)


@faults.graph("gelu_mlp", "backward")
def gradient_of_another_gelu(gm: GraphModule) -> None:
    """The backward pass of gelu uses the approximation by tanh, the forward pass does not."""
    set_argument(calls(gm, aten.gelu_backward)[0], "approximate", "tanh")


@faults.graph("gelu_mlp", "backward")
def residual_gradient_dropped(gm: GraphModule) -> None:
    """The gradient of x + f(x) has only the term of f."""
    node = calls(gm, aten.add)[0]
    node.replace_all_uses_with(node.all_input_nodes[1])


@faults.graph("where", "backward")
def mask_the_other_way(gm: GraphModule) -> None:
    """The gradient of where flows to the side that was not chosen."""
    for node in calls(gm, aten.where):
        alter(node.all_input_nodes[0], torch.logical_not)
        break


@faults.graph("unused_and_detached", "backward")
def gradient_through_detach(gm: GraphModule) -> None:
    """A detached use of an input takes part in its gradient."""
    results = results_of(gm)
    with gm.graph.inserting_before(gm.graph.output_node()):
        results[1] = gm.graph.call_function(torch.add, (results[1], calls(gm, aten.mul)[0]))
    set_results(gm, results)


@faults.graph("layer_norm", "backward")
def gradients_of_scale_and_shift(gm: GraphModule) -> None:
    """The weight and the bias of a layer norm, of equal shape, get each other's gradient."""
    swap_results(gm, 1, 2)


def _no_gradient(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


@faults.results(own(_no_gradient, lambda new: (new.values(4, 3), new.values(3, 2))))
def output_not_detached(results: list[Any], arguments: Sequence[Any]) -> list[Any]:
    """An output requires gradients although no input does."""
    return [results[0].requires_grad_()]
