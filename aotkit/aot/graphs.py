"""What the core does to graphs between tracing and compiling."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import tree_leaves

from aotkit.aot.graph_modules import graph_module, renew_code
from aotkit.aot.new_storages import replaced_inputs

IN_KERNELS = "in_kernels"  # tag of what each kernel that reads it computes, as the backend has said


def outside_fake_mode() -> Any:
    """Compilers run under this, so that they can do real tensor work."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    return unset_fake_temporarily()


@contextmanager
def outside_tracing() -> Iterator[None]:
    """Partitioners compute with real tensors under this. Tracing would send each operation through Python."""
    with outside_fake_mode(), torch._C._DisablePythonDispatcher():
        yield


def boxed(gm: GraphModule) -> Callable[[list[Any]], Sequence[Any]]:
    """Run the graph as it is, from one list that it empties, so that each input is freed after its last use.

    Some kernels give other strides than PyTorch's trace takes them to, as batch norm does on a CPU for a transposed
    input. What the trace takes for a view of such a result is then a copy.
    """
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        node.target = torch.ops.aten.reshape.default
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
    return graph_module(gm, graph)


def effect_tokens(gm: GraphModule) -> int:
    """How many tokens, which order effects, a graph makes itself: in the joint graph they are inputs and outputs."""
    return len(gm.graph.find_nodes(op="call_function", target=torch.ops.prims._make_token.default))


def is_traced(value: Any) -> bool:
    """Whether a value inside a traced function is one that the graph computes."""
    from torch._subclasses.functional_tensor import FunctionalTensor

    return isinstance(value, FunctionalTensor | torch.SymInt | torch.SymFloat | torch.SymBool)


def beyond_values(tensor: Tensor, inputs: Sequence[Any]) -> str | None:
    """What a tensor inside a traced function has that is no value, and that a result of a graph would lack."""
    if any(tensor is x for x in inputs):
        return None
    is_differentiable = any(isinstance(x, Tensor) and x.requires_grad for x in inputs)
    if tensor.requires_grad and (tensor.is_leaf or not is_differentiable):
        return "a gradient of its own"
    if tensor.retains_grad:
        return "a gradient that it retains"
    attributes = vars(tensor).keys() - {"elem", "_inference_mode_base"}  # functionalization's own
    return f"the attribute {min(attributes)!r}" if attributes else None


def sparse_nodes(gm: GraphModule) -> list[str]:
    """The nodes of a graph whose value is a tensor of another layout than strided."""
    values = {node.name: node.meta.get("val") for node in gm.graph.nodes}
    return [name for name, v in values.items() if isinstance(v, Tensor) and v.layout is not torch.strided]


def generators_of(gm: GraphModule, known: Sequence[Any] = ()) -> list[torch.Generator]:
    """The random generators that a graph holds as constants, in a node's arguments or as an attribute.

    Args:
        known: generators that do not count.
    """
    held: list[Any] = [a for node in gm.graph.nodes for a in (*node.args, *node.kwargs.values())]
    held += [getattr(gm, str(node.target), None) for node in gm.graph.find_nodes(op="get_attr")]
    # Python may have several objects for one generator.
    found: list[Any] = [a for a in held if isinstance(a, torch.Generator)]
    return list({g._cdata: g for g in found if g._cdata not in {k._cdata for k in known}}.values())


def has_torch_operators(gm: GraphModule) -> bool:
    """Whether all that a graph calls computes tensors from tensors, and is torch's own."""
    targets = [n.target for n in gm.graph.nodes if n.op == "call_function"]
    return all(getattr(t, "namespace", "builtin") in ("aten", "prims", "builtin") for t in targets)


def mutated_inputs(graph: Graph) -> set[Any]:
    """The placeholders whose tensors the graph's function changes in place: it returns their values, or writes them."""
    descriptions = tree_leaves(graph.output_node().meta.get("desc", ()))
    changed = [getattr(description, "mutated_input", None) for description in descriptions]
    inputs = graph.find_nodes(op="placeholder")
    returned = {node for node in inputs if any(node.meta.get("desc") == c for c in changed if c is not None)}
    written = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    return returned | {node.args[0] for node in written} | replaced_inputs(graph).keys()


def separate_gradients(backward: GraphModule) -> None:
    """Copy gradients that are another view of the memory of an earlier one.

    The engine makes a gradient that nothing else refers to the leaf's `.grad`. Of two views of one memory it would do
    so with both, and whoever scales one `.grad` in place would scale the other too.
    """
    owners: dict[int | None, Any] = {}
    _replace_gradients(backward, lambda i, node: owners.setdefault(storage_of(node), node) is not node)


def copy_repeated_gradients(backward: GraphModule) -> None:
    """Copy what a pointwise operator computes as the gradient of several leaves; before Inductor compiles the graph.

    The engine would do that, in a pass over memory; Inductor stores the value several times while it has it in
    registers. That is for nothing where `.grad` exists already, or under `torch.autograd.grad`: hence leaves only.
    """
    leaves, used = leaf_inputs(), set()
    origins: dict[int | None, Node] = {}
    for node in backward.graph.nodes:
        origins.setdefault(storage_of(node), node)

    def is_repeated(i: int, node: Node) -> bool:
        repeated = node in used and is_pointwise(origins[storage_of(node)])
        used.add(node)
        return repeated and i in leaves

    _replace_gradients(backward, is_repeated)


def _replace_gradients(backward: GraphModule, is_to_copy: Callable[[int, Node], bool]) -> None:
    output = backward.graph.output_node()
    gradients: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    for i, node in enumerate(gradients):
        if storage_of(node) is not None and is_to_copy(i, node):
            gradients[i] = copied(node, output)
    output.args = (tuple(gradients),)
    renew_code(backward)


def leaf_inputs() -> list[int]:
    """The inputs of the function that AOTAutograd compiles the backward graph of that were leaves when traced."""
    context = torch._guards.TracingContext.try_get()
    metadata = context.fw_metadata if context else None
    inputs = metadata.input_info if metadata else ()
    return [i for i, info in enumerate(inputs) if info.is_leaf]


def storage_of(node: Any) -> int | None:
    """The identity of the memory of a node's tensor."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value.untyped_storage()._cdata if isinstance(value, Tensor) and value.layout is torch.strided else None


def is_symbol(node: Node) -> bool:
    """Whether a node's value is a symbolic number, such as a size under `dynamic=True`."""
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool)


def is_pointwise(node: Node) -> bool:
    """Whether each element of a node's result depends on the same element of its inputs alone."""
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


def copied(node: Node, before: Node) -> Node:
    """A new node, before another one, that copies the value of a node."""
    with before.graph.inserting_before(before):
        copied = before.graph.call_function(torch.ops.aten.clone.default, (node,))
    # A value in memory of its own, by which passes tell copies from aliases.
    copied.meta = {**node.meta, "val": node.meta["val"].clone()}
    return copied
