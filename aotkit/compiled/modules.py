"""Compiled modules: the same module, with its own state, whose `forward` is compiled."""

import copy
import functools
import inspect
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from aotkit.compiled.function import CompiledFunction
from aotkit.torch_private.distributed import share_state

if TYPE_CHECKING:
    from aotkit.compiler import Options


class _Origin:
    """What a compiled module was made from.

    Attributes:
        module: the uncompiled module; it shares its state with the compiled one.
        make: the class of the compiled forward.
        own_forward: the `forward` among its own attributes, which wins over its class's, if there is one.
    """

    def __init__(self, module: nn.Module, options: "Options", make: type[CompiledFunction[..., Any]]) -> None:
        self.module = module
        self.options = options
        self.make = make
        self.own_forward: Callable[..., Any] | None = module.__dict__.get("forward")
        self._class_forward: Any = type(module).forward
        self._function: CompiledFunction[..., Any] = make(module.forward, options)

    def function(self) -> CompiledFunction[..., Any]:
        """The compiled forward; a new one after another was assigned to the module's class."""
        current: Any = type(self.module).forward
        if self.own_forward is None and current != self._class_forward:
            self._class_forward = current
            bound = inspect.getattr_static(type(self.module), "forward").__get__(self.module, type(self.module))
            self._function = self.make(bound, self.options)
        return self._function


class _GivesWay:
    """A method of a compiled function, for which a member of the user's own, by the same name, takes precedence."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, module: Any, owner: type | None = None) -> Any:
        name = self._name
        if module is None:
            return getattr(CompiledFunction, name)
        of_class: Any = super(CompiledModule, module)
        if hasattr(of_class, name):
            return getattr(of_class, name)
        for members in (module._parameters, module._buffers, module._modules):
            if name in members:
                return members[name]
        return getattr(function_of(module), name)


class CompiledModule(nn.Module):
    """Mixed into a module's own class, so that it stays an instance of it with the same parameters and attributes.

    A `forward` that is assigned to it runs as it is, as on any module; it may call the compiled one.
    """

    # Each compiled module has a class of its own, and looks this up there: the user's attributes have any name.
    _aotkit: _Origin

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Keep the hooks of the user's classes from seeing the class of a compiled module."""

    graphs, report, check, explain, timeline, save = (_GivesWay() for _ in range(6))

    @property
    def __wrapped__(self) -> nn.Module:
        """The uncompiled module; it shares its state with the compiled one."""
        return uncompiled(self)

    def __copy__(self) -> nn.Module:
        return compile_module(copy.copy(uncompiled(self)), *_how(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        return compile_module(copy.deepcopy(uncompiled(self), memo), *_how(self))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return compile_module, (uncompiled(self), *_how(self))


def _how(compiled: CompiledModule) -> "tuple[Options, type[CompiledFunction[..., Any]]]":
    """What `compile_module` was given besides the module."""
    origin = type(compiled)._aotkit
    return origin.options, origin.make


def compile_module(
    module: nn.Module, options: "Options", make: type[CompiledFunction[..., Any]] = CompiledFunction
) -> nn.Module:
    """A module that shares the state of `module` and calls its compiled forward."""
    if isinstance(module, CompiledModule):
        module = uncompiled(module)
    cls: Any = type(module)
    if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
        raise ValueError(f"{cls.__name__} has no parameters yet. Call it once on an example, then compile it.")
    if isinstance(module, torch.jit.ScriptModule):
        raise TypeError(f"{cls.__name__} is compiled by torch.jit. Compile the module that it was made of.")
    origin = _Origin(module, options, make)
    # Other tracers want a function there; only a property wins over a `forward` in the module's own attributes.
    forward = _method(cls.forward) if origin.own_forward is None else _own_forward
    namespace = {"_aotkit": origin, "forward": forward, "__module__": cls.__module__}
    compiled_class: Any = type(cls)(f"Compiled{cls.__name__}", (CompiledModule, cls), namespace)
    compiled: Any = object.__new__(compiled_class)
    compiled.__dict__ = module.__dict__
    share_state(module, compiled)
    return compiled  # type: ignore[no-any-return]


def function_of(compiled: Any) -> CompiledFunction[..., Any]:
    """The compiled function that a compiled module, or a compiled function, calls."""
    return type(compiled)._aotkit.function() if isinstance(compiled, CompiledModule) else compiled


def uncompiled(module: CompiledModule) -> nn.Module:
    """The module as it was before `compile_module`, with the state that it has now."""
    original = type(module)._aotkit.module
    if _is_intact(module):
        return original
    other: Any = object.__new__(type(original))
    other.__dict__ = module.__dict__
    return other  # type: ignore[no-any-return]


def _is_intact(module: CompiledModule) -> bool:
    """Whether it is what `compile_module` made: no replica with state of its own, nor of a derived class."""
    return module.__dict__ is type(module)._aotkit.module.__dict__ and "_aotkit" in vars(type(module))


def _method(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(self: CompiledModule, /, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # Dynamo of torch 2.11 cannot follow the rest
            return original(self, *args, **kwargs)
        if _is_intact(self):
            return function_of(self)(*args, **kwargs)
        return type(type(self)._aotkit.module).forward(self, *args, **kwargs)

    return forward


def _get_forward(self: CompiledModule) -> Any:
    origin, own = type(self)._aotkit, self.__dict__.get("forward")
    if own is None:  # it was deleted
        return types.MethodType(type(origin.module).forward, self)
    return origin.function() if own is origin.own_forward and _is_intact(self) else own


def _set_forward(self: CompiledModule, value: Any) -> None:
    self.__dict__["forward"] = value


_own_forward = property(_get_forward, _set_forward)
