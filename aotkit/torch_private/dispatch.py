"""The dispatcher and pytrees: what operators are, and modes that see each of them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

# Nested containers, flat and back.
pytree = _pytree
tree_leaves, tree_map = _pytree.tree_leaves, _pytree.tree_map
dispatch_modes = _get_current_dispatch_mode_stack

__all__ = [
    "OpOverload",
    "TorchDispatchMode",
    "dispatch_modes",
    "is_composite",
    "pytree",
    "pytree_children",
    "tree_leaves",
    "tree_map",
    "wrap_others",
]


def pytree_children(spec: Any) -> Sequence[Any]:
    """The structures inside a structure."""
    children = getattr(spec, "_children", None)
    return spec.children_specs if children is None else children  # type: ignore[no-any-return]


def is_composite(operator: OpOverload) -> bool:
    """Whether an operator consists of others, with derivatives of their own."""
    name = operator.name()  # type: ignore[no-untyped-call]
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")


def wrap_others(types: Sequence[type]) -> bool:
    """Whether some of these types, of an operator's tensors, are made of other tensors, as DTensor is."""
    return any(hasattr(kind, "__tensor_flatten__") for kind in types)
