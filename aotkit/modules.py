"""Compiled modules: the same module, with its own state, whose `forward` is compiled."""

import copy
import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from aotkit.checker import CheckReport
from aotkit.compiler import CompiledFunction
from aotkit.interfaces import Graphs


class CompiledModule(nn.Module):
    """Mixed into a module's own class, so that it stays an instance of it with the same parameters and attributes."""

    _compiled: CompiledFunction[..., Any]
    _original: type[nn.Module]
    _options: dict[str, Any]

    def graphs(self, *args: Any, **kwargs: Any) -> Graphs:
        """The graphs that a call with these arguments runs; compiles them if need be."""
        compiled: CompiledFunction[..., Any] = self._compiled
        return compiled.graphs(*args, **kwargs)

    def report(self, *args: Any, **kwargs: Any) -> CheckReport:
        """The verdict of the check for a call with these arguments; compiles if need be."""
        compiled: CompiledFunction[..., Any] = self._compiled
        return compiled.report(*args, **kwargs)

    @property
    def __wrapped__(self) -> nn.Module:
        """The uncompiled module; it shares its state with the compiled one."""
        return uncompiled(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        return compile_module(copy.deepcopy(uncompiled(self), memo), self._options)

    def __reduce__(self) -> Any:
        return compile_module, (uncompiled(self), self._options)


def compile_module(module: nn.Module, options: dict[str, Any]) -> nn.Module:
    """A module that shares the state of `module` and calls its compiled forward."""
    if isinstance(module, CompiledModule):
        module = uncompiled(module)
    cls: Any = type(module)
    if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
        raise ValueError(f"{cls.__name__} has no parameters yet. Call it once on an example, then compile it.")
    forward = CompiledFunction(module.forward, **options)
    # Compiled functions are descriptors; this one is bound already.
    namespace = {"_compiled": staticmethod(forward), "_original": cls, "_options": options}
    # Other tracers want a function there; only a property wins over a `forward` in the module's own attributes.
    own = "forward" in module.__dict__
    namespace["forward"] = property(lambda self: forward) if own else _method(forward, cls.forward)
    bases = (CompiledModule, cls)
    compiled_class: Any = type(cls)(f"Compiled{cls.__name__}", bases, {**namespace, "__module__": cls.__module__})
    compiled: Any = object.__new__(compiled_class)
    compiled.__dict__ = module.__dict__
    return compiled  # type: ignore[no-any-return]


def _method(compiled: CompiledFunction[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return compiled(*args, **kwargs)

    return forward


def uncompiled(module: CompiledModule) -> nn.Module:
    """The module as it was before `compile_module`, with the state that it has now."""
    original: Any = object.__new__(module._original)
    original.__dict__ = module.__dict__
    return original  # type: ignore[no-any-return]
