"""Saved values that are conjugated or negated lazily: views whose memory holds something else than they say.

Kernels of a compiler's own read memory: of such a value, Inductor's backward graph of torch 2.13 reads what is wrong.
"""

from typing import Any

import torch
from torch.fx import GraphModule

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
        target: Any = node.target
        base: Any = node.args[0]
        results[place] = base
        first = next(n for n in backward.graph.nodes if n.op != "placeholder")
        with backward.graph.inserting_before(first):
            again = backward.graph.call_function(target, (given,))
        again.meta = dict(node.meta)
        given.meta["val"] = base.meta["val"]
        given.replace_all_uses_with(again, lambda user, again=again: user is not again)
    if lazy:
        output.args = (tuple(results),)
        for node in dict.fromkeys(node for _, node, _ in lazy):
            if not node.users:
                forward.graph.erase_node(node)
        renew_code(forward)
        renew_code(backward)
