"""Inputs that may change before the backward pass runs, which eager would not notice: it keeps other values than them.

Eager keeps `normalize(q)` for the backward pass of `x @ normalize(q)`, and `q` may change. A compiler may compute it
again from `q`, which is there anyway, or find that `q.repeat(1, 1)` is `q`; autograd then raises. So joint graphs read
copies of such inputs: memory of their own, if they are saved. Where none is, none is made.
"""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from aotkit.passes.graphs import mutated_inputs
from aotkit.passes.nodes import is_symbol, storage_of
from aotkit.passes.views import views_behind
from aotkit.torch_private.dispatch import tree_leaves
from aotkit.torch_private.fx import renew_code

COPY = "copy_of_input"


def copy_changing_inputs(joint: GraphModule, lasting: Sequence[bool]) -> None:
    """Let the graph read copies of the inputs that eager would not keep; before any pass over it.

    Args:
        lasting: which inputs of the function are taken to keep their values; parameters, above all.
    """
    kept = _memory_kept(joint)
    for node in joint.graph.find_nodes(op="placeholder"):
        index = getattr(node.meta.get("desc"), "idx", None)
        may_change = type(index) is int and index < len(lasting) and not lasting[index]
        if may_change and storage_of(node) not in kept:
            (_read_copy if _has_such_copies(node.meta["val"]) else _read_once)(node)
    renew_code(joint)


def drop_unsaved_copies(gm: GraphModule, saved: Collection[Any] = ()) -> None:
    """Let a graph read its inputs themselves again, but for the copies that are saved.

    Args:
        saved: these values are.
    """
    kept = {node for value in saved for node in views_behind(value)}
    for copy in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default):
        if COPY in copy.meta and copy not in kept:
            node = copy.args[0]
            node.meta["val"] = copy.meta["val"]
            copy.replace_all_uses_with(node)
            gm.graph.erase_node(copy)
    renew_code(gm)


def _memory_kept(joint: GraphModule) -> Collection[int | None]:
    """The identities of what eager keeps, and of what the function changes."""
    descriptions = tree_leaves(joint.graph.output_node().meta.get("desc", ()))
    differentiated = [getattr(d, "grad_of", None) for d in descriptions]
    changed = mutated_inputs(joint.graph)
    kept: set[int | None] = {None}
    for node in joint.graph.find_nodes(op="placeholder"):
        if node in changed or node.meta.get("desc") in differentiated:
            kept.add(storage_of(node))
    for node in joint.graph.nodes:
        if node.op == "call_function" and not is_symbol(node) and _keeps(node):
            kept.update(map(storage_of, node.all_input_nodes))
    return kept


def _has_such_copies(value: Tensor) -> bool:
    """Whether a copy of a value has its layout, so that whatever is a view of the value can be one of the copy."""
    if value.is_conj() or value.is_neg():
        return False
    return [*map(str, value.clone().stride())] == [*map(str, value.stride())]  # open sizes are not compared


def _keeps(reader: Node) -> bool:
    """Whether eager keeps what a node reads for the backward pass, or the node depends on where in memory that is."""
    in_backward = reader.meta.get("partitioner_tag") in ("is_backward", "must_be_in_backward")
    is_mutable = getattr(getattr(reader.target, "_schema", None), "is_mutable", False)
    return in_backward or is_mutable or "recompute" in reader.meta or reader.target is torch.ops.aten.as_strided.default


def _read_copy(node: Node) -> None:
    readers = [user for user in node.users if user.op != "output" and not is_symbol(user)]
    if not readers:
        return
    with node.graph.inserting_before(next(n for n in node.graph.nodes if n.op != "placeholder")):
        copy = node.graph.call_function(torch.ops.aten.clone.default, (node,))
    copy.meta = {key: value for key, value in node.meta.items() if key in ("val", "tensor_meta", "partitioner_tag")}
    reason = "copy of an input that may change"
    copy.meta |= {COPY: True, "recompute": CheckpointPolicy.MUST_SAVE, "saved_because": reason}
    for reader in readers:
        reader.replace_input_with(node, copy)
    # Views of the input are views of the copy now, by the memory that passes tell them by.
    node.meta["val"] = node.meta["val"].clone()


def _read_once(node: Node) -> None:
    """What reads an input, or a view of it, cannot run later."""
    for reader in node.users:
        if storage_of(reader) == storage_of(node):
            _read_once(reader)
        elif reader.op != "output" and not is_symbol(reader):
            reader.meta.update(recompute=CheckpointPolicy.MUST_SAVE, saved_because="reads an input that may change")
