"""Results that are products in a 16-bit type, converted to float32, as gradients of weights are under autocast.

They are computed in float32: where kernels read what is converted, it stays half as large. cuBLAS adds up in float32 in
any case, and writes it as fast: on an H200, [3072, 8192] @ [8192, 768] takes 54.8 us in bfloat16, with the conversion
64.1, and 56.1 where it gives float32. That is more precise, too.
"""

from collections.abc import Iterator
from operator import getitem
from typing import Any

import torch
from torch.fx import GraphModule, Node

from aotkit.passes import is_view
from aotkit.torch_private.fx import renew_code

aten = torch.ops.aten
HALVES = (torch.bfloat16, torch.float16)


def widen_products(gm: GraphModule) -> None:
    """Let products give the results that they are converted to, in place; views between both are of that."""
    if torch.version.hip is not None:  # it has no such operator
        return
    changed = False
    for node in gm.graph.find_nodes(op="call_function", target=aten._to_copy.default):
        if node.meta["val"].dtype is torch.float32 and all(user.op == "output" for user in node.users):
            changed |= _widen(gm, node)
    if changed:
        renew_code(gm)


def _widen(gm: GraphModule, conversion: Node) -> bool:
    (*views, product) = _behind(conversion)
    if product.target is not aten.mm.default or len(product.users) > 1 or getitem in (v.target for v in views):
        return False
    if product.meta["val"].device.type != "cuda" or product.meta["val"].dtype not in HALVES:
        return False
    with gm.graph.inserting_before(product):
        wide = gm.graph.call_function(aten.mm.dtype, (*product.args, torch.float32))
    factors = [x.meta["val"] for x in product.all_input_nodes]
    wide.meta = {**product.meta, "val": aten.mm.dtype(factors[0], factors[-1], torch.float32)}
    made = [wide]
    for view in reversed(views):
        target: Any = view.target
        with gm.graph.inserting_before(view):
            made.append(gm.graph.call_function(target, (made[-1], *view.args[1:]), view.kwargs))
        value = target(made[-2].meta["val"], *view.args[1:], **view.kwargs)
        made[-1].meta = {**view.meta, "val": value}
    now, was = made[-1].meta["val"], conversion.meta["val"]
    is_same = (now.stride(), now.device) == (was.stride(), was.device)
    if is_same:
        conversion.replace_all_uses_with(made[-1])
    for node in (conversion, *views, product) if is_same else reversed(made):
        gm.graph.erase_node(node)
    return is_same


def _behind(node: Node) -> Iterator[Node]:
    """What a node converts, through views that nothing else reads: the nearest first."""
    while len(node.all_input_nodes) == 1:
        (node,) = node.all_input_nodes
        yield node
        if len(node.users) > 1 or not is_view(node):
            return
