"""Operators that do more than compute tensors from tensors."""

import torch
from torch.fx import GraphModule, Node

from aotkit.aot.partition import is_random


def changes_inputs(node: Node) -> bool:
    """Whether an operator writes into tensors that it is given."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def keeps_order(node: Node) -> bool:
    """Whether an operator has to run after all of its like that come before it in the graph.

    It draws random numbers or has another effect; so may any operator that is not torch's own.
    """
    own = getattr(node.target, "namespace", "aten") in ("aten", "prims")
    return not own or is_random(node) or node.is_impure(impure_random=False)


def effect_tokens(gm: GraphModule) -> int:
    """How many tokens, which order effects, a graph makes itself: in the joint graph they are inputs and outputs."""
    return len(gm.graph.find_nodes(op="call_function", target=torch.ops.prims._make_token.default))
