"""Inputs that a function gives another storage: `weight.data = renorm(weight.data)` in a forward.

Before torch 2.14, Dynamo's graph has `set_` for that, and AOTAutograd puts it at the end of the forward graph. That is
not quite what the function does: `set_` also replaces the node that accumulates the tensor's gradient, so
`torch.autograd.grad` finds no path to it any more, and hooks on the node are lost (torch 2.13, under torch.compile,
too). Here the graph returns the values, and what runs it assigns them as the function does.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext
from torch.fx import Graph, GraphModule, Node

from aotkit.aot.graph_modules import renew_code

aten = torch.ops.aten
SINCE_2_14 = (aten.shallow_copy_data_,) if hasattr(aten, "shallow_copy_data_") else ()
REPLACE_STORAGE = (aten.set_.source_Tensor, *(packet.default for packet in SINCE_2_14))  # in AOTAutograd's graphs
IS_NEW_STORAGE = "is_new_storage"  # tag of the values that inputs get

Boxed = Callable[[list[Any]], Sequence[Any]]


def assigned_data(gm: GraphModule) -> Sequence[int]:
    """The inputs to whose `.data` a graph that Dynamo captured assigns; none, if it changes other storages besides."""
    inputs = gm.graph.find_nodes(op="placeholder")
    sets, assignments = _calls(gm.graph, (Tensor.set_,)), _assignments_by_set(gm.graph)
    assigned = [node.args[0] for node in (*assignments, *_calls(gm.graph, SINCE_2_14))]
    if len(sets) != len(assignments) or not all(node in inputs for node in assigned):
        return ()
    return [inputs.index(node) for node in assigned]


def assign_data(gm: GraphModule) -> None:
    """Let a graph that Dynamo captured assign `x.data` as the function does."""
    for set_, lowered in _assignments_by_set(gm.graph).items():
        set_.target = _assign
        lowered.replace_all_uses_with(set_)
        gm.graph.erase_node(lowered)


def _assignments_by_set(graph: Graph) -> dict[Node, Node]:
    """Where Dynamo has `set_` for `x.data = y`, and then counts that change of `x` back, as `.data` is not counted."""
    pairs = [(node, user) for node in _calls(graph, (Tensor.set_,)) for user in node.users]
    return {node: user for node, user in pairs if getattr(user.target, "__name__", "") == "_lower_version_count_by_1"}


def _calls(graph: Graph, targets: Sequence[Any]) -> list[Node]:
    return [node for target in targets for node in graph.find_nodes(op="call_function", target=target)]


def _assign(x: Tensor, data: Tensor) -> Tensor:
    x.data = data
    return x


def replaced_inputs(graph: Graph) -> dict[Any, Any]:
    """The inputs that a graph gives other storages, and the values in these."""
    return {node.args[0]: node.args[1] for node in _calls(graph, REPLACE_STORAGE)}


def return_new_storages(forward: GraphModule) -> Sequence[int]:
    """Let a graph return what it would give to inputs, after its other results; the numbers of these inputs."""
    replaced = replaced_inputs(forward.graph)
    for node in _calls(forward.graph, REPLACE_STORAGE):
        node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
        forward.graph.erase_node(node)
    output = forward.graph.output_node()
    results: Any = output.args[0]
    output.args = ((*results, *replaced.values()),)
    for node in replaced.values():
        node.meta[IS_NEW_STORAGE] = True
    for of_each in ("desc", "output_stack_traces"):
        if of_each in output.meta:
            output.meta[of_each] = [*output.meta[of_each], *(None for _ in replaced)]
    renew_code(forward)
    places = {node: i for i, node in enumerate(forward.graph.find_nodes(op="placeholder"))}
    return [places[node] for node in replaced]


def assigning(run: Boxed, inputs: Sequence[int]) -> Boxed:
    """Calls of such a graph, just compiled, which assign its last results to these inputs."""
    if not inputs:
        return run
    context = TracingContext.try_get()
    if context is not None and context.output_strides:  # as Inductor has told them, of all results
        del context.output_strides[-len(inputs) :]

    def call(args: list[Any]) -> Sequence[Any]:
        tensors = [args[i] for i in inputs]
        results = list(run(args))
        first = len(results) - len(tensors)
        values = [value.detach() for value in results[first:]]  # one may be an input that gets another storage itself
        for tensor, value in zip(tensors, values, strict=True):
            tensor.data = value
        return results[:first]

    call._boxed_call = True  # type: ignore[attr-defined]
    return call
