"""Saved values that are conjugated or negated lazily: views whose memory holds something else than they say.

Kernels of a compiler's own read memory: of such a value, Inductor's backward graph of torch 2.13 reads what is wrong.
"""

from typing import Any

import torch
from torch.fx import GraphModule, Node

from aotkit.passes.nodes import is_symbol
from aotkit.torch_private.fx import renew_code

aten = torch.ops.aten
LAZY = (aten._conj.default, aten._neg_view.default)


def save_unconjugated(forward: GraphModule, backward: GraphModule, num_outputs: int) -> None:
    """Save what they are of, and conjugate it in the backward graph."""
    output = forward.graph.output_node()
    results: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    # Forward returns the symbolic sizes last, backward takes them first. A value may be saved twice.
    places = sorted(range(num_outputs, len(results)), key=lambda place: not is_symbol(results[place]))
    taken = zip(places, backward.graph.find_nodes(op="placeholder"), strict=False)
    lazy = [(place, results[place], given) for place, given in taken if results[place].target in LAZY]
    for place, node, given in lazy:
        base, steps = _unconjugated(node)
        results[place] = base
        first = next(n for n in backward.graph.nodes if n.op != "placeholder")
        again: list[Node] = [given]
        with backward.graph.inserting_before(first):
            for step in steps:
                again.append(backward.graph.call_function(step.target, (again[-1],)))  # type: ignore[arg-type]
                again[-1].meta = dict(step.meta)
        given.meta["val"] = base.meta["val"]
        given.replace_all_uses_with(again[-1], lambda user, made=again: user not in made)
    if lazy:
        output.args = (tuple(results),)
        for step in dict.fromkeys(step for _, node, _ in lazy for step in reversed(_unconjugated(node)[1])):
            if not step.users:
                forward.graph.erase_node(step)
        renew_code(forward)
        renew_code(backward)


def _unconjugated(node: Node) -> tuple[Node, list[Node]]:
    """What is lazily conjugated, and each step from it to this node: a conjugate's conjugate has two."""
    steps: list[Node] = []
    while node.target in LAZY:
        steps.insert(0, node)
        node = node.args[0]  # type: ignore[assignment]
    return node, steps
