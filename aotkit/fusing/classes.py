"""How a module is changed: its class becomes a subclass of its own, with another `forward`.

So do torch's `parametrize` and `fully_shard`. The module stays the same object, with the same attributes: parameters,
hooks and state_dict are not touched, and the way back is its class of before. A `forward` among its attributes would
not do: a shallow copy of the module, as `DataParallel` makes them, would run that of the original. Nor would
`Module.compile`: it captures hooks of the module with it, and copies lose it.

Modules of one class, in groups, share what is compiled: to that, the module is an argument.
"""

import copyreg
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from aotkit.compiled import CompiledFunction
from aotkit.compiler import compile
from aotkit.fusing.config import FusionConfig
from aotkit.fusing.decision import Decision
from aotkit.fusing.kernels import with_fused_processors

Function = Callable[..., Any]


class FusedModule(nn.Module):
    """Mixed into the class of each module that `fuse` changes."""

    # Each class that `Fusion.class_of` makes has these, and looks for them in itself alone.
    _aotkit_fusion: "Fusion"
    _aotkit_original: type
    _aotkit_name: str  # of a module, as in `Fusion.decisions`, for which this class is made

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Keep the hooks of the user's classes from seeing the class of a fused module."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced: Any = super().__reduce_ex__(max(protocol, 2))
        kind = type(self)
        if reduced[0] is not copyreg.__newobj__ or reduced[1] != (kind,) or not is_fused(self):  # type: ignore[attr-defined]
            return reduced  # it has a way of its own
        return _empty, (kind._aotkit_fusion, kind._aotkit_original, kind._aotkit_name), *reduced[2:]


class Fusion:
    """What one call of `fuse` decided; all modules that it changed, and their copies, share it.

    Attributes:
        decisions: for each module that it looked at, by name, what becomes of it; "" is the whole model.
    """

    def __init__(self, config: FusionConfig, decisions: Mapping[str, Decision]) -> None:
        self.config = config
        self.decisions = decisions
        self._options = options_of(config)
        compile(_identity, **self._options)  # what cannot be had fails here, even if there is nothing to compile
        self._functions: dict[tuple[type, int], CompiledFunction[..., Any]] = {}
        self._classes: list[tuple[tuple[Any, ...], type]] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> "Fusion":
        return self

    def __reduce__(self) -> Any:
        return Fusion, (self.config, self.decisions)

    def function_of(self, cls: Any, group: int) -> CompiledFunction[..., Any]:
        """The compiled `forward` of a class, for the modules of a group; the module is its first argument."""
        if (cls, group) not in self._functions:
            self._functions[cls, group] = compile(cls.forward, **self._options)
        return self._functions[cls, group]

    def class_of(self, cls: Any, name: str) -> type:
        """The class that a module gets.

        Args:
            cls: its own class.
            name: its name, or that of a module of which the same was decided.
        """
        decision, is_root = self.decisions[name], not name
        key = cls, decision, is_root
        for known, of_these in self._classes:
            if known == key:
                return of_these
        namespace = {"_aotkit_fusion": self, "_aotkit_original": cls, "_aotkit_name": name}
        namespace |= {attribute: getattr(cls, attribute) for attribute in ("__module__", "__qualname__", "__doc__")}
        if decision.outcome == "compiled":
            if is_root and hasattr(cls, "get_compiled_call"):
                namespace["get_compiled_call"] = _itself
            namespace["forward"] = _forward(cls.forward, self.function_of(cls, decision.group))
        elif decision.forward is not None:
            namespace["forward"] = _forward(cls.forward, decision.forward)
        if is_root and "FusedNoRepeatNGram" in self.config.custom_kernels:
            namespace |= with_fused_processors(cls)
        made: type = type(cls)(cls.__name__, (FusedModule, cls), namespace)
        self._classes.append((key, made))
        return made


def _itself(model: nn.Module, compile_config: Any) -> Function:
    """What `generate` of transformers calls where it would have torch.compile compile the model: with static caches."""
    return model.__call__


def _identity(x: Any) -> Any:
    return x


def options_of(config: FusionConfig) -> dict[str, Any]:
    """Those of `compile`.

    Raises:
        ValueError: the limit is none.
    """
    partition = config.partition
    if config.memory_limit is not None:
        from aotkit.partitioners import nx_min_cut

        partition = nx_min_cut.budget(config.memory_limit)
    elif config.memory_efficient_fusion and partition == "auto":
        partition = "nx_min_cut"
    # Libraries' code is TorchDynamo's, which leaves sizes open that change. What fails stays as it is.
    return {
        "backend": config.backend, "partition": partition, "check": config.check, "random": config.random,
        "capture": "dynamo", "on_error": "eager",
    }  # fmt: skip


def is_fused(module: nn.Module) -> bool:
    """Whether `fuse` changed this module, and nothing changed its class since."""
    return "_aotkit_fusion" in vars(type(module))


def original_class(module: nn.Module) -> type:
    """The class that a module has without `fuse`."""
    return type(module)._aotkit_original if is_fused(module) else type(module)  # type: ignore[attr-defined]


def _empty(fusion: Fusion, cls: type, name: str) -> nn.Module:
    made: Any = fusion.class_of(cls, name)
    empty: nn.Module = made.__new__(made)
    return empty


def _forward(original: Function, fused: Function) -> Function:
    @functools.wraps(original)
    def forward(self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        # What wraps this method, as accelerate does for mixed precision, outlives `unfuse`.
        if torch.compiler.is_compiling() or not isinstance(self, FusedModule):
            return original(self, *args, **kwargs)
        return fused(self, *args, **kwargs)

    return forward
