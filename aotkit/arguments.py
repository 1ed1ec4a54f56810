"""Bring the arguments of a call into one canonical flat form."""

import inspect
import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aotkit.aot import pytree, pytree_children
from aotkit.constants import constant_key, is_constant
from aotkit.errors import EagerOnly


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


class Parameters:
    """A function's parameters: bring the arguments of a call into canonical form, and name them."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self._read()

    def _read(self) -> None:
        fn = self._fn
        self._defaults = getattr(fn, "__defaults__", None)
        self._signature: inspect.Signature | None
        try:
            self._signature = inspect.signature(fn)
        except (TypeError, ValueError):  # a built-in
            self._signature = None
        parameters = self._signature.parameters.values() if self._signature is not None else ()
        self._names = [p.name for p in parameters]
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._plain_count = len(self._names) if all(p.kind in positional for p in parameters) else -1

    def canonical(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional where possible, in the signature's order, with defaults filled in.

        Raises:
            EagerOnly: the arguments do not fit, as far as `inspect` can tell: Python shall decide.
        """
        if not kwargs and len(args) == self._plain_count:
            return args, kwargs
        if getattr(self._fn, "__defaults__", None) is not self._defaults:
            self._read()
        if self._signature is None:
            return args, kwargs
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as e:
            raise EagerOnly(f"the arguments do not fit its signature: {e}") from None
        bound.apply_defaults()
        return bound.args, bound.kwargs

    def names_of(self, arguments: Arguments) -> tuple[list[str], list[str]]:
        """Names of the tensors and of the objects among the arguments: `x`, `batch['image']`, `args[1]`."""
        tree = pytree.tree_unflatten(arguments.leaves, arguments.spec)
        try:
            named, _ = pytree.tree_flatten_with_path(tree, is_leaf=is_size)
        except ValueError:  # a container that was registered without names for its parts
            plain = [f"args[{i}]" for i in range(len(arguments.leaves))]
            return plain[: len(arguments.tensors)], plain[: len(arguments.objects)]
        tensors, objects = [], []
        for path, leaf in named:
            if isinstance(leaf, Tensor):
                tensors.append(self._name(path))
            elif not is_constant(leaf):
                objects.append(self._name(path))
        return tensors, objects

    def _name(self, path: Sequence[Any]) -> str:
        root, first, *rest = path
        if root.idx == 1:
            start = str(first.key)
        else:
            start = self._names[first.idx] if first.idx < len(self._names) else f"args[{first.idx}]"
        return start + str(pytree.keystr(tuple(rest)))


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
            raise EagerOnly("torch.fx is tracing it")
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
