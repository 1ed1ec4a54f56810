"""Operators that do more than compute tensors from tensors."""

from torch.fx import Node

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
