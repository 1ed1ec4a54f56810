"""torch's functions of operators that take functions: `cond`, `while_loop`, `flex_attention`.

In eager they have TorchDynamo capture what they are given, so that only TorchDynamo takes what calls them.
"""

import types
from collections.abc import Set
from typing import Any

from aotkit.capture import code_names, objects
from aotkit.capture.refusals import EagerOnly

MODULE = "torch._higher_order_ops"  # others than theirs can be traced, such as that of `autograd.Function`


def refuse(function: types.FunctionType) -> None:
    """Refuse such a function.

    Raises:
        EagerOnly: it is one.
    """
    names = code_names.global_names(function.__code__)
    held = (type(function.__globals__.get(name)) for name in names)  # such an operator is the only one of its type
    if any(objects.module_of(x).startswith(MODULE) for x in (function, *held)):
        raise EagerOnly(f"it calls {function.__qualname__!r}, which torch has TorchDynamo capture")


def refuse_mentioned(space: Any, mentioned: Set[str]) -> None:
    """Refuse those functions of a module of torch's, and of modules in it, that code mentions by name.

    Raises:
        EagerOnly: there is one.
    """
    if not isinstance(space, types.ModuleType):
        return
    for name in mentioned & vars(space).keys():
        held = vars(space)[name]
        if isinstance(held, types.FunctionType):
            refuse(held)
        elif isinstance(held, types.ModuleType) and held.__name__.startswith(f"{space.__name__}."):
            refuse_mentioned(held, mentioned)
