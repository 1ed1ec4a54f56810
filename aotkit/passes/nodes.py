"""What a node of a graph is: its memory, its cost, its effects."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from aotkit.passes.chunks import bodies_of, is_in_chunks
from aotkit.torch_private.dispatch import OpOverload, tree_leaves

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
# The namespaces of operators that compute tensors from tensors: torch's, and aotkit's.
KNOWN = ("aten", "prims", "aotkit")
IN_KERNELS = "in_kernels"  # tag of what each kernel that reads it computes, as the backend has said


def storage_of(node: Any) -> int | None:
    """The identity of the memory of a node's tensor."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value.untyped_storage()._cdata if isinstance(value, Tensor) and value.layout is torch.strided else None


def is_symbol(node: Node) -> bool:
    """Whether a node's value is a symbolic number, such as a size under `dynamic=True`."""
    return isinstance(node.meta.get("val"), SYMBOLIC)


def is_pointwise(node: Node) -> bool:
    """Whether each element of a node's result depends on the same element of its inputs alone."""
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


def _size_hint(size: Any) -> int:
    """What a size is likely to be."""
    if isinstance(size, int):
        return size
    from torch.fx.experimental import symbolic_shapes  # it imports SymPy: a third of a second

    hint = getattr(symbolic_shapes, "optimization_hint", getattr(symbolic_shapes, "size_hint", None))
    assert hint is not None
    return int(hint(size, fallback=UNKNOWN_SIZE))


UNKNOWN_SIZE = 4096  # elements assumed for a size that only the data decide, torch's own guess
SEEDED = torch.Tag.nondeterministic_seeded


def is_random(node: Node) -> bool:
    """Whether a node draws from a random generator, itself or in a subgraph that it calls."""
    if isinstance(node.target, OpOverload):  # calls none
        return SEEDED in node.target.tags and not _has_no_dropout(node)
    owner = node.graph.owning_module
    bodies = [getattr(owner, i.target, None) for i in node.all_input_nodes if i.op == "get_attr"]  # type: ignore[arg-type]
    if any(is_random(inner) for body in bodies if isinstance(body, GraphModule) for inner in body.graph.nodes):
        return True
    called = [t for t in (node.target, *node.args) if SEEDED in getattr(t, "tags", ())]
    return bool(called) and not _has_no_dropout(node)


def _has_no_dropout(node: Node) -> bool:
    """Attention is tagged as random, but draws nothing if its `dropout_p` is 0."""
    schema = getattr(node.target, "_schema", None)
    for i, argument in enumerate(schema.arguments if schema else ()):
        if argument.name == "dropout_p":
            value = node.args[i] if i < len(node.args) else node.kwargs.get("dropout_p", argument.default_value)
            return isinstance(value, float | int) and value == 0
    return False


def is_in_kernels(node: Node) -> bool:
    """Whether each kernel that reads a value computes it: there is nothing to save."""
    return IN_KERNELS in node.meta


def must_save(node: Node) -> bool:
    """Whether something has forbidden to recompute this node."""
    return node.meta.get("recompute") in (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)


def asked_to_recompute(node: Node) -> bool:
    """Whether `torch.utils.checkpoint` has marked a node: what it computes is to be computed again, not saved."""
    return node.meta.get("recompute") in (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


def is_tensor(node: Node) -> bool:
    """Whether a node's value is one tensor."""
    return isinstance(node.meta.get("val"), Tensor)


def storages(node: Node) -> dict[Any, int]:
    """The distinct memory of a node's tensors: identity -> bytes. Views of one another have the same identity."""
    found: dict[Any, int] = {}
    whole = node.meta.get("val")
    for value in [whole] if isinstance(whole, Tensor) else tree_leaves(whole):
        if isinstance(value, Tensor):
            try:
                storage = value.untyped_storage()
                found[storage._cdata] = _size_hint(storage.nbytes())
            except NotImplementedError:  # sparse and other layouts without storage
                found[id(value)] = _size_hint(value.numel()) * value.element_size()
    return found


def is_view(node: Node, memory: Callable[[Node], Mapping[Any, int]] = storages) -> bool:
    """Whether all of a node's memory is its inputs': recomputing it moves no data.

    Args:
        memory: what `storages` gives, if that is known.
    """
    if node.target is operator.getitem:
        return is_view(node.all_input_nodes[0], memory)
    own = memory(node).keys()
    return bool(own) and own <= {storage for i in node.all_input_nodes for storage in memory(i)}


def flops(node: Node) -> int:
    """The floating-point operations of a matrix product, a convolution or attention; 0 for anything else.

    Source: the table of `torch.utils.flop_counter`. Attention is counted here as it counts most of it: all of the two
    products, masked or not, and five in the backward pass. It lacks that on a CPU, and in torch 2.11 refuses that with
    fewer heads of keys than of queries.
    """
    from torch.utils.flop_counter import flop_registry

    if is_in_chunks(node):
        return _flops_in_chunks(node)
    name = str(node.target)
    count: Any = flop_registry.get(getattr(node.target, "overloadpacket", None))
    is_attention = "scaled_dot_product" in name and "attention" in name
    if count is None and not is_attention:
        return 0
    arguments: Any = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    args, kwargs = arguments
    if is_attention:
        first = 1 if "backward" in name else 0
        query, key = args[first], args[first + 1]
        found = (10 if first else 4) * query.numel() * key.shape[-2]
    else:
        found = count(*args, **kwargs, out_val=node.meta["val"])
    return _size_hint(found)


def _flops_in_chunks(node: Node) -> int:
    """Of the graph of a chunk, as often as it runs, and of the products that are added up of all."""
    _, _, groups, size, along, results, *operands = node.args
    found: int = sum(map(flops, bodies_of(node)[0].graph.nodes)) * groups // size  # type: ignore
    rows = next(x.meta["val"].shape[d] for x, d in zip(operands, along, strict=True) if d is not None)  # type: ignore
    products = [v for v, how in zip(node.meta["val"], results, strict=True) if how[0] == "product"]  # type: ignore
    return int(found + sum(2 * rows * value.numel() for value in products))


def temporary_bytes(node: Node) -> int:
    """What is in memory while an operation runs, besides what it takes and gives: a chunk of what is in chunks."""
    if not is_in_chunks(node):
        return 0
    body = bodies_of(node)[0]
    results = body.graph.output_node().args[0]
    made = [n for n in body.graph.nodes if flops(n) or n in results]  # type: ignore[operator]
    held: dict[Any, int] = {key: size for n in made for key, size in storages(n).items()}
    return sum(held.values())


def changes_inputs(node: Node) -> bool:
    """Whether an operator writes into tensors that it is given."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def keeps_order(node: Node) -> bool:
    """Whether an operator has to run after all of its like that come before it in the graph.

    It draws random numbers or has another effect; so may any operator that is neither torch's own nor aotkit's.
    """
    is_known = getattr(node.target, "namespace", "aten") in KNOWN
    return not is_known or is_random(node) or node.is_impure(impure_random=False)


def operator_name(node: Node) -> str:
    """Short name of the operator: `add` for `aten.add.Tensor`, `prims.iota` for another namespace."""
    target = node.target
    if isinstance(target, str):
        return target
    if hasattr(target, "overloadpacket"):
        return str(target.overloadpacket).removeprefix("aten.")
    return str(getattr(target, "__name__", target))


def packet_name(node: Node) -> str:
    """The name of the operator without namespace and overload: `add`, `iota`."""
    target = getattr(node.target, "overloadpacket", node.target)
    return str(getattr(target, "__name__", target))


def producer(node: Node) -> Node:
    """The operation that computes a node's value, of which that may be one of several results."""
    while node.target is operator.getitem and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def is_operation(node: Node) -> bool:
    """Whether the node calls an operator, other than to pick one of several results or to read a size."""
    return node.op == "call_function" and node.target is not operator.getitem and not is_symbol(node)


def size_hint(size: int | torch.SymInt) -> int | None:
    """The integer that a size had while tracing; None for a size that depends on data."""
    if isinstance(size, int):
        return size
    return int(size.node.hint) if size.node.has_hint() else None


def tensors_of(node: Node) -> list[Tensor]:
    """The tensors that a node computes."""
    value = node.meta.get("val")
    return [v for v in (value if isinstance(value, list | tuple) else [value]) if isinstance(v, Tensor)]
