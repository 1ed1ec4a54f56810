"""What the core does to graphs between tracing and compiling."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule
from torch.utils._pytree import tree_leaves


def outside_fake_mode() -> Any:
    """Compilers run under this, so that they can do real tensor work."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    return unset_fake_temporarily()


def boxed(gm: GraphModule) -> Callable[[list[Any]], Sequence[Any]]:
    """Run the graph as it is, from one list that it empties, so that each input is freed after its last use."""
    gm.graph.set_codegen(torch.fx.graph._BoxedCodeGen())
    gm.recompile()
    run = gm.forward
    call: Callable[[list[Any]], Sequence[Any]] = lambda args: run(args)  # noqa: E731  (methods take no attributes)
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def copy_graph(gm: GraphModule) -> GraphModule:
    """A copy that shares constants and fake tensors with the original."""
    graph = Graph()
    output = graph.output(graph.graph_copy(gm.graph, {}))
    output.meta = dict(gm.graph.output_node().meta)
    return GraphModule(gm, graph)


def is_traced(value: Any) -> bool:
    """Whether a value inside a traced function is one that the graph computes."""
    from torch._subclasses.functional_tensor import FunctionalTensor

    return isinstance(value, FunctionalTensor | torch.SymInt | torch.SymFloat | torch.SymBool)


def copy_saved_mutated_inputs(forward: GraphModule, num_outputs: int) -> None:
    """Save a copy of an input that the function changes in place: the input itself gets its new value after the call.

    Inductor's passes drop the copy that AOTAutograd makes.
    """
    mutated = mutated_inputs(forward.graph)
    output = forward.graph.output_node()
    results: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    for i in range(num_outputs, len(results)):
        if results[i] in mutated:
            with forward.graph.inserting_before(output):
                copied = forward.graph.call_function(torch.ops.aten.clone.default, (results[i],))
            copied.meta.update(results[i].meta)
            results[i] = copied
    output.args = (tuple(results),)
    forward.recompile()


def sparse_nodes(gm: GraphModule) -> list[str]:
    """The nodes of a graph whose value is a tensor of another layout than strided."""
    values = {node.name: node.meta.get("val") for node in gm.graph.nodes}
    return [name for name, v in values.items() if isinstance(v, Tensor) and v.layout is not torch.strided]


def generators_of(gm: GraphModule) -> set[torch.Generator]:
    """The random generators that a graph holds as constants."""
    arguments = (a for node in gm.graph.nodes for a in (*node.args, *node.kwargs.values()))
    return {a for a in arguments if isinstance(a, torch.Generator)}


def mutated_inputs(graph: Graph) -> set[Any]:
    """The placeholders whose tensors the graph's function changes in place."""
    descriptions = tree_leaves(graph.output_node().meta.get("desc", ()))
    changed = [getattr(description, "mutated_input", None) for description in descriptions]
    inputs = graph.find_nodes(op="placeholder")
    return {node for node in inputs if any(node.meta.get("desc") == c for c in changed if c is not None)}
