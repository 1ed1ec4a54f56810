"""Wrong cuts: forward and backward graphs that do not fit each other."""

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.testing.case import Case
from aotkit.testing.faults.planting import Subject
from aotkit.testing.faults.rewriting import alter, calls, inputs_of, results_of, set_results, swap_results

aten = torch.ops.aten
faults = Subject("partitions")

two = Case.of("two_products", lambda x, y: x.sin() * y.cos(), lambda new: (new.normal(4, 4), new.normal(4, 4)))


def _replace_saved(gm: GraphModule, num_outputs: int, saved: Node, by: Any) -> None:
    results = results_of(gm)
    results[results.index(saved, num_outputs)] = by
    set_results(gm, results)


@faults.parts("pointwise_chain")
def wrong_saved_value(forward: GraphModule, backward: GraphModule, num_outputs: int) -> None:
    """The value before an operator is saved instead of the one after it."""
    first = calls(forward, aten.cos)[0]
    _replace_saved(forward, num_outputs, first, first.args[0])


@faults.parts(two)
def reordered_saved_values(forward: GraphModule, backward: GraphModule, num_outputs: int) -> None:
    """Two saved values of equal shape arrive in each other's place."""
    swap_results(forward, len(results_of(forward)) - 1, len(results_of(forward)) - 2)


@faults.parts(two)
def saved_transposed(forward: GraphModule, backward: GraphModule, num_outputs: int) -> None:
    """A square saved value arrives transposed."""
    results = results_of(forward)
    with forward.graph.inserting_before(forward.graph.output_node()):
        transposed = forward.graph.call_function(torch.t, (results[-1],))
    transposed.meta.update(results[-1].meta)
    set_results(forward, [*results[:-1], transposed])


def _changed_between(x: Tensor, y: Tensor) -> Tensor:
    z = x.sin()
    z.mul_(2)
    return z * y


@faults.parts(Case.of("changed_between", _changed_between, lambda new: (new.normal(4, 3), new.normal(4, 3))))
def saved_before_mutation(forward: GraphModule, backward: GraphModule, num_outputs: int) -> None:
    """A value is saved as it was before it is changed in place; the backward pass needs the one after."""
    doubled = next(n for n in calls(forward, aten.mul) if 2 in n.args)
    _replace_saved(forward, num_outputs, doubled, doubled.args[0])


@faults.parts("mutates_an_input")
def saved_after_mutation(forward: GraphModule, backward: GraphModule, num_outputs: int) -> None:
    """An input is saved as it is after the call; the backward pass needs the one before."""
    _replace_saved(forward, num_outputs, calls(forward, aten.clone)[-1], calls(forward, aten.mul)[0])


@faults.parts("dropout")
def saved_mask_negated(forward: GraphModule, backward: GraphModule, num_outputs: int) -> None:
    """The backward pass of dropout gets the mask of what was dropped."""
    alter(calls(backward, aten.native_dropout_backward)[0].all_input_nodes[1], torch.logical_not)


@faults.parts(two)
def saved_in_half(forward: GraphModule, backward: GraphModule, num_outputs: int) -> None:
    """A saved value loses half of its bits on the way to the backward pass."""
    alter(inputs_of(backward)[0], lambda x: x.bfloat16().to(x.dtype))


two_outputs = Case.of("two_outputs", lambda x, y: (x.sin() * y, x * y.cos()), two.inputs)


@faults.parts(two_outputs)
def swapped_tangents(forward: GraphModule, backward: GraphModule, num_outputs: int) -> None:
    """The backward graph takes the tangents in the wrong order."""
    first, second = (n for n in inputs_of(backward) if n.name.startswith("tangents"))
    for user in {**first.users, **second.users}:
        user.args = tuple(second if a is first else first if a is second else a for a in user.args)


@faults.parts("several_losses")
def outputs_in_other_order(forward: GraphModule, backward: GraphModule, num_outputs: int) -> None:
    """The forward graph returns the first and the last output in each other's place."""
    swap_results(forward, 0, num_outputs - 1)


@faults.parts("layer_norm")
def recomputed_without_epsilon(forward: GraphModule, backward: GraphModule, num_outputs: int) -> None:
    """The backward graph recomputes the statistics of a norm with another epsilon."""
    alter(calls(backward, aten.native_layer_norm_backward)[0].all_input_nodes[3], torch.mul, 0.999)


@faults.parts("checkpointed")
def recomputed_from_another_value(forward: GraphModule, backward: GraphModule, num_outputs: int) -> None:
    """What is recomputed starts from an input instead of a function of it."""
    calls(backward, aten.cos)[0].replace_all_uses_with(inputs_of(backward)[0])


@faults.results(two)
def tail_of_a_saved_value(results: list[Any]) -> list[Any]:
    """The last row of a saved value is not written."""
    saved = results[-1].clone()
    saved[-1] = 0
    return [*results[:-1], saved]
