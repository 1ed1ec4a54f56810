"""What graphs that are data may call, by name: operators of torch and aotkit, and functions of numbers."""

import builtins
import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from aotkit.passes.chunks import in_chunks
from aotkit.passes.description import ON_GRAPHS
from aotkit.torch_private.dispatch import OpOverload

NAMESPACES = ("aten", "prims", "_c10d_functional", "aotkit")
WITH_FILES = ("from_file", "save")  # no name in a record shall reach a file
# By name, not all of these modules: those have `eval`, `getattr` and `methodcaller`, too.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module, names in (
        (operator, "getitem add sub mul truediv floordiv mod pow neg pos eq ne lt le gt ge and_ or_ xor not_ invert"),
        (math, "ceil floor trunc sqrt"),
        (builtins, "abs bool float int max min round"),
    )
    for name in names.split()
}
_FUNCTIONS["in_chunks"] = in_chunks
_NAMES = {function: name for name, function in _FUNCTIONS.items()}


def name_of(target: Any) -> str | None:
    """`aten.add.Tensor`, `higher_order.cond`, `operator.getitem`; None for what no record may name."""
    if isinstance(target, OpOverload):
        name = str(target)
        return name if target.namespace in NAMESPACES and name.split(".")[1] not in WITH_FILES else None
    if getattr(target, "namespace", None) == "higher_order":
        return f"higher_order.{target}" if str(target) in ON_GRAPHS else None
    return _NAMES.get(target)


def target_of(name: str) -> Callable[..., Any]:
    """What `name_of` has given the name.

    Raises:
        ValueError: nothing has it.
    """
    found: Any = _FUNCTIONS.get(name)
    namespace, _, rest = name.partition(".")
    if namespace == "higher_order" and rest in ON_GRAPHS:
        found = getattr(torch.ops.higher_order, rest, None)
    elif namespace in NAMESPACES:
        packet_name, _, overload = rest.partition(".")
        packet = getattr(getattr(torch.ops, namespace), packet_name, None)
        # Other attributes of a namespace have no overloads.
        found = getattr(packet, overload) if overload in getattr(packet, "overloads", list)() else None
    if found is None or name_of(found) != name:
        raise ValueError(f"a graph of data cannot call {name!r}")
    return found  # type: ignore[no-any-return]
