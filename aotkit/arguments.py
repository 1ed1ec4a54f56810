"""Bring the arguments of a call into one canonical flat form."""

import functools
import inspect
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from aotkit.aot import pytree
from aotkit.captures import CONSTANT_TYPES, constant_key


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

    def names(self, signature: inspect.Signature | None) -> tuple[list[str], list[str]]:
        """Names of the tensors and of the objects: `x`, `batch['image']`, `args[1]`."""
        parameters = list(signature.parameters) if signature is not None else []
        named, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten(self.leaves, self.spec))
        tensors, objects = [], []
        for path, leaf in named:
            if isinstance(leaf, Tensor):
                tensors.append(_name(path, parameters))
            elif not isinstance(leaf, CONSTANT_TYPES):
                objects.append(_name(path, parameters))
        return tensors, objects


def _name(path: Sequence[Any], parameters: Sequence[str]) -> str:
    root, first, *rest = path
    is_keyword = root.idx == 1
    if is_keyword:
        start = str(first.key)
    else:
        start = parameters[first.idx] if first.idx < len(parameters) else f"args[{first.idx}]"
    return start + pytree.keystr(tuple(rest))


def flatten(args: Sequence[Any], kwargs: dict[str, Any]) -> Arguments:
    """Take canonical arguments apart."""
    leaves, spec = pytree.tree_flatten((tuple(args), kwargs))
    tensors: list[Tensor] = []
    objects: list[Any] = []
    key: list[Hashable] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            tensors.append(leaf)
            key.append(Tensor)
        elif isinstance(leaf, CONSTANT_TYPES):
            key.append(constant_key(leaf))
        else:
            objects.append(leaf)
            key.append(object)
    return Arguments(leaves, spec, tensors, objects, (spec, tuple(key)))


def signature_of(fn: Callable[..., Any]) -> inspect.Signature | None:
    """The function's signature; None for a built-in that has none."""
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):
        return None


def canonical(
    signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional where possible, in the signature's order, with defaults filled in.

    Raises:
        TypeError: the arguments do not fit, in the words of the call itself.
    """
    if signature is None:
        return args, dict(sorted(kwargs.items()))
    if not kwargs and len(args) == _plain_count(signature):
        return args, kwargs
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.args, dict(sorted(bound.kwargs.items()))


@functools.lru_cache(maxsize=1024)
def _plain_count(signature: inspect.Signature) -> int:
    """The number of arguments, if all are positional; else -1."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = signature.parameters.values()
    return len(parameters) if all(p.kind in positional for p in parameters) else -1
