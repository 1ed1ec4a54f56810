"""Inputs that a function gives another storage: `weight.data = renorm(weight.data)` in a forward.

Before torch 2.14, Dynamo's graph has `set_` for that, and AOTAutograd puts it at the end of the forward graph. That is
not quite what the function does: `set_` also replaces the node that accumulates the tensor's gradient, so
`torch.autograd.grad` finds no path to it any more, and hooks on the node are lost (torch 2.13, under torch.compile,
too). Here the graph returns the values, and what runs it assigns them as the function does.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from aotkit.interfaces import Boxed
from aotkit.torch_private.aotautograd_metadata import told_strides
from aotkit.torch_private.fx import renew_code

aten = torch.ops.aten
SINCE_2_14 = (aten.shallow_copy_data_,) if hasattr(aten, "shallow_copy_data_") else ()
REPLACE_STORAGE = (aten.set_.source_Tensor, *(packet.default for packet in SINCE_2_14))  # in AOTAutograd's graphs
IS_NEW_STORAGE = "is_new_storage"  # tag of the values that inputs get


def calls_of(graph: Graph, targets: Sequence[Any]) -> list[Node]:
    return [node for target in targets for node in graph.find_nodes(op="call_function", target=target)]


def replaced_inputs(graph: Graph) -> dict[Any, Any]:
    """The inputs that a graph gives other storages, and the values in these."""
    return {node.args[0]: node.args[1] for node in calls_of(graph, REPLACE_STORAGE)}


def return_new_storages(forward: GraphModule) -> Sequence[int]:
    """Let a graph return what it would give to inputs, after its other results; the numbers of these inputs."""
    replaced = replaced_inputs(forward.graph)
    for node in calls_of(forward.graph, REPLACE_STORAGE):
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
    if strides := told_strides():  # of all results
        del strides[-len(inputs) :]

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
