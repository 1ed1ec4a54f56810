"""Take the arguments of a call apart: tensors, constants, other objects, and the structure that holds them."""

import types
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aotkit.capture.constants import constant_key, is_constant
from aotkit.errors import EagerOnly
from aotkit.torch_private.dispatch import pytree, pytree_children


class Arguments(NamedTuple):
    """One call's arguments, taken apart.

    Attributes:
        leaves: everything in args and kwargs, flat.
        spec: how to put the leaves together again.
        tensors: the leaves that are tensors.
        objects: the leaves that are neither tensors nor constants: modules, functions, dataclasses.
        key: equal for calls that differ in tensors and objects only.
    """

    leaves: list[Any]
    spec: Any
    tensors: list[Tensor]
    objects: list[Any]
    key: Hashable

    def rebuild(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) with other tensors in the places of these."""
        rest = iter(tensors)
        leaves = [next(rest) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return args, kwargs


def flatten(args: Sequence[Any], kwargs: dict[str, Any]) -> Arguments:
    """Take canonical arguments apart.

    Raises:
        EagerOnly: something else traces the call.
    """
    leaves, spec = pytree.tree_flatten((tuple(args), kwargs), is_leaf=is_size)
    tensors: list[Tensor] = []
    objects: list[Any] = []
    key: list[Hashable] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            tensors.append(leaf)
            key.append(Tensor)
        elif is_constant(leaf):
            key.append(constant_key(leaf))
        elif isinstance(leaf, torch.fx.Proxy):
            raise EagerOnly("torch.fx is tracing it", final=True)
        else:
            objects.append(leaf)
            key.append(object)
    return Arguments(leaves, spec, tensors, objects, (spec.num_leaves, structure_of(spec), tuple(key)))


def is_size(value: Any) -> bool:
    """Whether a value is a torch.Size of plain numbers, which stays whole."""
    return isinstance(value, torch.Size) and all(type(n) is int for n in value)


def structure_of(spec: Any) -> Hashable:
    """A tree's structure, exactly: the order of dict keys counts, and {1: x} is neither {1.0: x} nor {True: x}."""
    if spec.type is None:  # a leaf
        return None
    return spec.type, _hashable(spec.context), *map(structure_of, pytree_children(spec))


def _hashable(context: Any) -> Hashable:
    if isinstance(context, list | tuple):
        return tuple(map(_hashable, context))
    if isinstance(context, dict):
        return tuple((_hashable(k), _hashable(v)) for k, v in context.items())
    if type(context) is str or isinstance(context, type | types.BuiltinFunctionType | types.FunctionType):
        return context
    if is_constant(context):
        return constant_key(context)
    raise EagerOnly(f"an argument's container holds a {type(context).__name__}, which cannot be compared")
