"""Matrices that Inductor pads for matrix products, stored once.

A product runs faster if its sizes are multiples of eight, so Inductor pads what it reads: of GPT-2, whose vocabulary
has 50257 words, the gradient of the logits for one product and its transpose for another. Each of these copies would
be written apart; here the second one becomes a view of the first.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

aten = torch.ops.aten
PRODUCTS = {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default}


def share_padded(gm: GraphModule) -> None:
    """Pad a value once where it is padded by as much under several permutations of its dimensions, in place.

    Only for matrix products: what the function returns has strides and memory of its own.
    """
    alike = defaultdict[Any, list[Node]](list)
    for pad in gm.graph.find_nodes(op="call_function", target=aten.constant_pad_nd.default):
        if not _is_for_products(pad):
            continue
        source, order = _unpermuted(pad.args[0])
        filling = pad.args[2] if len(pad.args) > 2 else 0
        before = [(0, 0)] * len(order)
        for dim, amounts in zip(order, _by_dimension(pad.args[1], len(order)), strict=True):
            before[dim] = amounts
        alike[source, tuple(before), filling].append(pad)
    for (source, amounts, filling), pads in alike.items():
        if len(pads) > 1:
            _share(gm, source, amounts, filling, pads)
    gm.graph.lint()


def _share(
    gm: GraphModule, source: Node, amounts: Sequence[tuple[int, int]], filling: float, pads: Sequence[Node]
) -> None:
    def added_before(pad: Node, target: Any, *args: Any) -> Node:
        values = [a.meta["val"] if isinstance(a, Node) else a for a in args]
        with gm.graph.inserting_before(pad):
            node = gm.graph.call_function(target, args)
        node.meta = {**pad.meta, "val": target(*values)}  # which says, too, whether it is of the forward pass
        return node

    flat = [amount for pair in reversed(amounts) for amount in pair]
    padded = added_before(pads[0], aten.constant_pad_nd.default, source, flat, filling)
    for pad in pads:
        _, order = _unpermuted(pad.args[0])
        is_same = order == sorted(order)
        pad.replace_all_uses_with(padded if is_same else added_before(pad, aten.permute.default, padded, order))
        gm.graph.erase_node(pad)


def _is_for_products(node: Node) -> bool:
    """Whether only matrix products read a node, or permutations of it."""
    permutations = [user for user in node.users if user.target is aten.permute.default]
    others = node.users.keys() - permutations
    return all(user.target in PRODUCTS for user in others) and all(map(_is_for_products, permutations))


def _unpermuted(node: Any) -> tuple[Node, list[int]]:
    """(what a node permutes, the dimension of that which each of its own is)."""
    count = node.meta["val"].dim()
    if node.target is not aten.permute.default:
        return node, list(range(count))
    return node.args[0], [dim % count for dim in node.args[1]]


def _by_dimension(flat: Sequence[int], count: int) -> list[tuple[int, int]]:
    """How much each dimension grows at its start and at its end; `flat` begins with the last dimension."""
    pairs = list(zip(flat[::2], flat[1::2], strict=True))
    return [(0, 0)] * (count - len(pairs)) + pairs[::-1]
