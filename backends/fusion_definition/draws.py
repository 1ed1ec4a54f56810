"""Shared random numbers (`aotkit.random.draws`) in the form in which nvFuser fuses them.

Words are made one after the other and then viewed in the shape of a tensor. Beside another view that is one too many
for a kernel: nvFuser splits dropout into layer normalisation between views of its input and its output. So words are
made in their shape: position `(i, j)` of `n` columns has the index `i * n + j`. And draws differ in the number that is
added to the seed: as an input of the kernel, it leaves the kernels of equal layers equal.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from aotkit.backends.fusion_definition.builder import shape_of
from aotkit.backends.fusion_definition.pointwise import POINTWISE

aten = torch.ops.aten
VIEWS = (aten.view.default, aten._unsafe_view.default)


def shape_indices(graph: Graph) -> None:
    """Replace views of what is computed pointwise from `arange` and numbers by the same computation in their shape.

    It keeps the names of nodes; those of new ones are no other graph's.
    """
    before, names = {*graph.nodes}, dict[Node, str]()
    for view in [n for n in graph.nodes if n.target in VIEWS]:
        source = view.args[0]
        if (computation := _from_indices(source)) is None:
            continue
        copies: dict[Node, Node] = {}
        with graph.inserting_before(view):
            for node in computation:
                if node.target is aten.arange.start_step:
                    copies[node] = _indices(graph, node, shape_of(view))
                else:
                    copies[node] = graph.node_copy(node, lambda n: copies.get(n, n))  # noqa: B023
                    copies[node].meta = {"val": node.meta["val"].new_empty(shape_of(view))}
                    names[copies[node]] = node.name
        view.replace_all_uses_with(copies[source])
    graph.eliminate_dead_code()
    taken = {n.name for n in graph.nodes if n in before}
    for node in [n for n in graph.nodes if n not in before]:
        name = names.get(node, node.name)
        node.name = f"{name}_in_shape_{len(taken)}" if node not in names or name in taken else name
        taken.add(node.name)


def _from_indices(source: Node) -> list[Node] | None:
    """The nodes that compute it from ranges, in their order; None if it is computed from other tensors, too."""
    found: dict[Node, None] = {}
    pending = [source]
    while pending:
        node = pending.pop()
        if node in found:
            continue
        found[node] = None
        if node.target is aten.arange.start_step:
            if node.args[0] != 0 or len(node.args) > 2:
                return None
        elif node.target in POINTWISE:
            pending += [n for n in node.all_input_nodes if shape_of(n)]
        else:
            return None
    if not any(n.target is aten.arange.start_step for n in found):
        return None
    order = {n: i for i, n in enumerate(source.graph.nodes)}
    return sorted(found, key=order.__getitem__)


def _indices(graph: Graph, arange: Node, shape: list[int]) -> Node:
    """The range as a tensor of this shape."""
    like = arange.meta["val"]
    options = {name: value for name, value in arange.kwargs.items() if value is not None}

    def emit(target: Any, args: tuple[Any, ...], size: list[int], **kwargs: Any) -> Node:
        node = graph.call_function(target, args, kwargs)
        node.meta["val"] = like.new_empty(size)
        return node

    total = None
    for d, size in enumerate(shape):
        if size == 1 and (total is not None or d < len(shape) - 1):
            continue
        term = emit(aten.arange.start_step, (0, size), [size], **options)
        if (stride := math.prod(shape[d + 1 :])) > 1:
            term = emit(aten.mul.Tensor, (term, stride), [size])
        after = [size, *[1] * (len(shape) - d - 1)]
        for rank in range(1, len(after)):
            term = emit(aten.unsqueeze.default, (term, -1), after[: rank + 1])
        if total is not None:  # of the dimensions before this one
            term = emit(aten.add.Tensor, (total, term), [*shape_of(total)[: -len(after)], *after])
        total = term
    return emit(aten.expand.default, (total, shape), shape)


def lift_numbers(graph: Graph) -> list[Tensor]:
    """Make the integers that are added to numbers on the CPU inputs of the graph, after the others; returns those."""
    numbers: list[Tensor] = []
    for node in graph.find_nodes(op="call_function", target=aten.add.Tensor):
        value, number = node.meta["val"], node.args[1]
        if value.dim() or value.dtype is not torch.int64 or not isinstance(number, int) or len(node.args) > 2:
            continue
        last = graph.find_nodes(op="placeholder")[-1]
        with graph.inserting_after(last):
            lifted = graph.placeholder(f"number_{len(numbers)}")
        lifted.meta["val"] = value.new_empty(())
        node.args = (node.args[0], lifted)
        numbers.append(torch.tensor(number))
    return numbers
