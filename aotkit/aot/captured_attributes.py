"""Tensors that a graph of Dynamo's holds as attributes: the parameters of an optimizer whose step is captured.

Who runs the graph on copies of its inputs would change these, the user's own. So they become inputs.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from torch import Tensor
from torch._guards import detect_fake_mode
from torch.fx import Graph, GraphModule, Node

from aotkit.aot.graph_modules import graph_module


def attributes_as_inputs(gm: GraphModule) -> tuple[GraphModule, Sequence[Tensor]]:
    """A graph that takes the tensors among its attributes as inputs, after the others; and these tensors."""
    tensors: dict[str, Tensor] = {}
    for node in gm.graph.find_nodes(op="get_attr"):
        if isinstance(value := attrgetter(node.target)(gm), Tensor):
            tensors[node.target] = value
    if not tensors:
        return gm, ()
    sources = dict(getattr(gm, "_param_name_to_source", {}))
    graph, copies = Graph(), dict[Node, Node]()
    for node in gm.graph.find_nodes(op="placeholder"):
        copies[node] = graph.node_copy(node)
        copies[node]._dynamo_source = getattr(node, "_dynamo_source", None)
    for name in tensors:
        placeholder = graph.placeholder(name.replace(".", "_"))
        placeholder._dynamo_source = sources.pop(name, None)
        for node in gm.graph.find_nodes(op="get_attr"):
            if node.target == name:
                placeholder.meta, copies[node] = dict(node.meta), placeholder
    output = graph.output(graph.graph_copy(gm.graph, copies))
    output.meta = dict(gm.graph.output_node().meta)
    lifted: Any = graph_module(gm, graph)
    lifted.meta.update(gm.meta)
    lifted._param_name_to_source = sources
    lifted.compile_subgraph_reason = getattr(gm, "compile_subgraph_reason", None)
    return lifted, list(tensors.values())


def as_traced(tensors: Sequence[Tensor], example_inputs: Sequence[Any]) -> list[Any]:
    """What stands for these tensors where stand-ins for others are traced."""
    mode = detect_fake_mode(example_inputs)
    return [t if mode is None else mode.from_tensor(t, static_shapes=True) for t in tensors]
