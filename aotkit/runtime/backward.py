"""Give the backward pass of a compiled call the behaviour of eager where AOTAutograd's own differs."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from aotkit.errors import UnsupportedError
from aotkit.torch_private.aotautograd_metadata import Compiled
from aotkit.torch_private.autograd import current_node

SECOND_DERIVATIVE = (
    "{} was differentiated with create_graph=True, but its backward graph cannot be differentiated again. Where second "
    "derivatives are needed, call the uncompiled function, its `__wrapped__`."
)


def refuse_leaf_mutation(tensors: Sequence[Tensor]) -> None:
    """Raise what eager raises when a function mutates one of these in place."""
    for tensor in tensors:
        base = tensor._base if tensor._is_view() else tensor
        if base is not None and base.is_leaf and base.requires_grad:
            kind = "a leaf" if base is tensor else "a view of a leaf"
            raise RuntimeError(f"{kind} Variable that requires grad is being used in an in-place operation.")


def unused_gradients(uses: Sequence[frozenset[int]], compiled: Compiled) -> Sequence[frozenset[int]] | None:
    """For each input that is a tensor, the outputs of the autograd node on which its gradient depends.

    None where every gradient depends on every output: then all gradients are absent, or none is.

    Args:
        uses: from `gradient_uses`; empty without a backward graph.
    """
    everything = frozenset(range(len(compiled.tangents)))
    if len(everything) < 2 or not any(used and used != everything for used in uses):
        return None
    return [frozenset(compiled.tangents[i] for i in used) for used in uses]


def _nodes_of(tensors: Sequence[Any]) -> set[Any]:
    """The autograd nodes that computed these tensors."""
    return {t.grad_fn for t in tensors if isinstance(t, Tensor) and t.grad_fn is not None}


def run_watched(
    compiled: Compiled, inputs: Sequence[Any], name: str, uses: Sequence[frozenset[int]] | None, *, has_backward: bool
) -> Sequence[Any]:
    """Call a compiled graph; if it has a backward graph, see to it that its backward pass behaves as eager's."""
    if not has_backward:
        return compiled.call(*inputs)
    own = compiled.own_output
    before = _nodes_of(inputs) if own is None else set()
    results = compiled.call(*inputs)
    if not torch.is_grad_enabled():
        return results
    if own is not None:
        node = results[own].grad_fn
    else:
        node = _autograd_node([*results, *(inputs[i] for i in compiled.mutated)], before)
    if node is not None:
        _watch_backward(node, name, uses)
    return results


def _watch_backward(node: Any, name: str, uses: Sequence[frozenset[int]] | None) -> None:
    """Give the backward of one call the behaviour of eager where AOTAutograd's own differs.

    It refuses `create_graph=True`, whose gradients would have no graph of their own; incoming gradients have the values
    that their memory says; and an input whose outputs took no part in the backward pass gets None, not zeros.

    Args:
        node: the autograd node of the call.
        uses: from `unused_gradients`.
    """
    drops = False

    def prepare(incoming: Sequence[Tensor | None]) -> tuple[Tensor | None, ...] | None:
        nonlocal drops
        if torch.is_grad_enabled():
            raise UnsupportedError(SECOND_DERIVATIVE.format(repr(name)))
        # Else no gradient is absent, and autograd need not show all of them to Python.
        if not drops and (all if uses is None else any)(g is None for g in incoming):
            drops = True
            # The node itself, which must not be kept alive by a hook of its own.
            current_node().register_hook(drop_unused)
        return tuple(map(_materialized, incoming)) if any(map(_is_lazy, incoming)) else None

    def drop_unused(gradients: Sequence[Tensor | None], incoming: Sequence[Tensor | None]) -> Any:
        absent = {i for i, g in enumerate(incoming) if g is None}
        if len(absent) == len(incoming):  # as of another compiled call that has None for its input
            return (None,) * len(gradients)
        if uses is None:
            return None
        return tuple(None if used and used <= absent else g for g, used in zip(gradients, uses, strict=True))

    node.register_prehook(prepare)


def _is_lazy(gradient: Tensor | None) -> bool:
    """Whether a gradient's values are not those in its memory: conjugated or negated by a bit, or zeros without any."""
    return gradient is not None and (gradient.is_conj() or gradient.is_neg() or gradient._is_zerotensor())


def _materialized(gradient: Tensor | None) -> Tensor | None:
    if gradient is None or not gradient._is_zerotensor():
        return gradient if gradient is None else gradient.resolve_conj().resolve_neg()
    return torch.zeros(gradient.shape, dtype=gradient.dtype, device=gradient.device)


def _autograd_node(tensors: Sequence[Any], before: set[Any]) -> Any:
    """The autograd node of a compiled call, found from its results: views and copies may stand in between."""
    nodes = _nodes_of(tensors) - before
    for _ in range(4):
        for node in nodes:
            if node.name() == "CompiledFunctionBackward":
                return node
        nodes = {n for node in nodes for n, _ in node.next_functions if n is not None} - before
    return None
