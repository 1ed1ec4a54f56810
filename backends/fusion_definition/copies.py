"""Copies that nothing needs: of values that no one changes, for results inside the graph."""

import torch
from torch.fx import GraphModule, Node

from aotkit.passes import results_of, storage_of, views_behind

aten = torch.ops.aten


def drop_copies(gm: GraphModule) -> None:
    """Read a value itself in place of its copy in the same layout.

    What may change stays, and copies of it: inputs, and results of the function, in the memory of which others are not.
    """
    results = {storage_of(result) for result in results_of(gm)}
    for copy in gm.graph.find_nodes(op="call_function", target=aten.clone.default):
        source = copy.args[0]
        if "recompute" in copy.meta or views_behind(source)[0].op == "placeholder":
            continue
        memories = {storage_of(copy), storage_of(source)}
        if _layout(copy) == _layout(source) and None not in memories and not memories & results:
            copy.replace_all_uses_with(source)
            gm.graph.erase_node(copy)


def _layout(node: Node) -> tuple[object, ...]:
    value = node.meta["val"]
    return value.dtype, value.device, [*map(str, value.shape)], [*map(str, value.stride())]  # open sizes have no equals
