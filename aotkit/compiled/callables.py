"""What `compile` makes of each kind of callable."""

from typing import TYPE_CHECKING, Any

from torch import nn

from aotkit.compiled.function import CompiledFunction
from aotkit.compiled.modules import compile_module

if TYPE_CHECKING:
    from aotkit.compiler import Options


def compile_callable(fn: Any, options: "Options", make: type[CompiledFunction[..., Any]] = CompiledFunction) -> Any:
    """A module for a module, a static or class method for one of these, else a compiled function.

    Args:
        make: the class of what is called.
    """
    if isinstance(fn, nn.Module):
        return compile_module(fn, options, make)
    if isinstance(fn, staticmethod | classmethod):  # as where `@compile` stands above `@staticmethod`
        return type(fn)(make(fn.__func__, options))
    return make(fn, options)
