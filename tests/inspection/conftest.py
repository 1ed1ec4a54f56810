"""Real graphs for the inspection tests, traced with AOTAutograd directly."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import aot_function, default_partition, make_boxed_func, min_cut_rematerialization_partition
from torch.fx import Graph, GraphModule, Node

from aotkit.inspection import Graphs
from aotkit.passes import credit_backward, recording_source

PARTITIONS = {"default": default_partition, "min_cut": min_cut_rematerialization_partition}


def copied(gm: GraphModule) -> GraphModule:
    # Not copy.deepcopy: it fails on a joint graph's fake constants, and its calling convention warns when copied.
    graph, copies = Graph(), dict[Node, Node]()
    for node in gm.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    return GraphModule(gm, graph)


def trace_graphs(
    fn: Callable[..., Any],
    *args: Any,
    partition: str = "default",
    dynamic: bool = False,
    names: list[str] | None = None,
    decompositions: Any = None,
) -> Graphs:
    """The graphs of `fn(*args)`; runs it and its backward."""
    found: dict[str, Any] = {"num_fwd_outputs": None}

    def keep(key: str) -> Callable[..., Any]:
        def compiler(gm: GraphModule, _: Any) -> Any:
            found[key] = copied(gm)
            return make_boxed_func(gm.forward)

        return compiler

    def split(joint: GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **kwargs: Any) -> Any:
        credit_backward(joint)
        found.update(joint=copied(joint), num_fwd_outputs=num_fwd_outputs)
        return PARTITIONS[partition](joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)

    def traced(*inputs: Any) -> Any:
        with recording_source():
            return fn(*inputs)

    outputs = aot_function(
        traced, keep("forward"), keep("backward"), split, decompositions=decompositions, dynamic=dynamic
    )(*args)
    tensors = [out for out in torch.utils._pytree.tree_leaves(outputs) if out.requires_grad]
    if tensors:
        torch.autograd.backward([out.sum() for out in tensors])
    placeholders = found["forward"].graph.find_nodes(op="placeholder")
    return Graphs(
        name=getattr(fn, "__name__", type(fn).__name__),
        backend="nop",
        partition=partition,
        forward=found["forward"],
        joint=found.get("joint"),
        backward=found.get("backward"),
        num_outputs=len(_outputs(found["forward"])) if found["num_fwd_outputs"] is None else found["num_fwd_outputs"],
        input_names=names or list(inspect.signature(fn).parameters)[: len(placeholders)],
    )


def _outputs(gm: GraphModule) -> Any:
    return gm.graph.output_node().args[0]


@pytest.fixture
def graphs_of() -> Callable[..., Graphs]:
    return trace_graphs
