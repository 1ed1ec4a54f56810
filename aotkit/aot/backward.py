"""Give the backward pass of a compiled call the behaviour of eager where AOTAutograd's own differs."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from aotkit.aot.tracing import Compiled
from aotkit.errors import UnsupportedError
from aotkit.interfaces import Graphs


def refuse_leaf_mutation(tensors: Sequence[Tensor]) -> None:
    """Raise what eager raises when a function mutates one of these in place."""
    for tensor in tensors:
        base = tensor._base if tensor._is_view() else tensor
        if base is not None and base.is_leaf and base.requires_grad:
            kind = "a leaf" if base is tensor else "a view of a leaf"
            raise RuntimeError(f"{kind} Variable that requires grad is being used in an in-place operation.")


def unused_gradients(graphs: Graphs, compiled: Compiled) -> Sequence[frozenset[int]] | None:
    """For each input, the outputs of the autograd node on which its gradient depends.

    None where every gradient depends on every output: then no gradient can turn out to be absent.
    """
    if graphs.joint is None or len(compiled.tangents) < 2:
        return None
    tangents = [n for n in graphs.joint.graph.find_nodes(op="placeholder") if "tangents" in n.name]
    if len(tangents) != len(compiled.tangents):
        return None
    reached: dict[Any, frozenset[int]] = {n: frozenset((i,)) for n, i in zip(tangents, compiled.tangents, strict=True)}
    for node in graphs.joint.graph.nodes:
        if node.op not in ("placeholder", "output"):
            reached[node] = frozenset().union(*(reached.get(n, ()) for n in node.all_input_nodes))
    (output,) = graphs.joint.graph.find_nodes(op="output")
    gradients = pytree.tree_leaves(output.args[0], is_leaf=lambda x: x is None)[graphs.num_outputs :]
    uses = [reached.get(g, frozenset()) for g in gradients]
    everything = frozenset(compiled.tangents)
    return uses if any(u and u != everything for u in uses) else None


def watch_backward(tensors: Sequence[Any], name: str, uses: Sequence[frozenset[int]] | None) -> None:
    """Give the backward of one call the behaviour of eager where AOTAutograd's own differs.

    It refuses `create_graph=True`, whose gradients would have no graph of their own; and an input whose outputs took
    no part in the backward pass gets None, not zeros.

    Args:
        tensors: everything that the call returned or mutated.
        uses: from `unused_gradients`.
    """
    if not torch.is_grad_enabled() or (node := _autograd_node(tensors)) is None:
        return

    def refuse_second_derivative(_: Any) -> None:
        if torch.is_grad_enabled():
            raise UnsupportedError(
                f"{name!r} was differentiated with create_graph=True, but its backward graph cannot be differentiated "
                "again. Where second derivatives are needed, call the uncompiled function, its `__wrapped__`."
            )

    node.register_prehook(refuse_second_derivative)
    if uses is not None:

        def drop_unused(gradients: Sequence[Tensor | None], incoming: Sequence[Tensor | None]) -> Any:
            absent = {i for i, g in enumerate(incoming) if g is None}
            return tuple(None if used and used <= absent else g for g, used in zip(gradients, uses, strict=True))

        node.register_hook(drop_unused)


def _autograd_node(tensors: Sequence[Any]) -> Any:
    """The autograd node of a compiled call, found from its results: views and copies may stand in between."""
    nodes = [t.grad_fn for t in tensors if isinstance(t, Tensor) and t.grad_fn is not None]
    for _ in range(4):
        for node in nodes:
            if node.name() == "CompiledFunctionBackward":
                return node
        nodes = [following for node in nodes for following, _ in node.next_functions if following is not None]
    return None
