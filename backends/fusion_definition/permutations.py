"""Permutations of permutations, as gradients of linear layers have them: one, or none."""

import torch
from torch.fx import GraphModule

from aotkit.backends.fusion_definition.padded_products import PERMUTATIONS
from aotkit.torch_private.fx import renew_code

aten = torch.ops.aten


def merge_permutations(gm: GraphModule) -> None:
    """Merge them in place. What is returned stays a tensor of its own."""
    for node in list(gm.graph.nodes):
        before = node.args[0] if node.target in PERMUTATIONS else None
        if before is None or before.target not in PERMUTATIONS:
            continue
        inner, outer = (PERMUTATIONS[n.target](n.meta["val"].dim(), *n.args[1:]) for n in (before, node))
        order = [inner[dim] for dim in outer]
        if order == sorted(order) and all(user.op != "output" for user in node.users):
            node.replace_all_uses_with(before.args[0])
            gm.graph.erase_node(node)
        else:
            node.target, node.args = aten.permute.default, (before.args[0], order)
        if not before.users:
            gm.graph.erase_node(before)
    renew_code(gm)
