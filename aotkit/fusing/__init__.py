"""`fuse`: a model as it is, with parts of it, or all of it, running compiled; `unfuse` takes that back."""

from collections.abc import Sequence
from typing import TypeVar

from torch import nn

from aotkit.capture import cpp_compiler
from aotkit.compiled import CompiledModule
from aotkit.errors import UnavailableError, UnsupportedError
from aotkit.fusing.choosing import decisions_of
from aotkit.fusing.classes import FusedModule, Fusion, is_fused, original_class
from aotkit.fusing.config import AnyConfig, FusionConfig, config_of
from aotkit.fusing.report import FusionReport, report_of

__all__ = ["FusionConfig", "FusionReport", "fuse", "fusion_report", "unfuse"]

M = TypeVar("M", bound=nn.Module)


def fuse(model: M, config: AnyConfig = None, /) -> M:
    """Have a model run compiled, as a config says; it stays the same object, with the same parameters and methods.

    Its state_dict, hooks, `save_pretrained`, `generate` and its class's name are what they were. Copies and pickles of
    it are fused, too: call `unfuse` before you pickle it for a place without aotkit. A model that is fused already gets
    the new config in place of its old one.

    What cannot be compiled stays as it is; `fusion_report` says why. That may turn out in its first call, which warns
    then (`EagerCallWarning`). The first call of each kind compares with eager, see `compile`.

    Args:
        config: a `FusionConfig`; a dict `{"kernel_fusion": {...}}` with its fields, as OSLO had it; or the path of such
            a dict as JSON or YAML. None: the defaults.

    Returns:
        `model`.

    Raises:
        UnknownNameError: a key, a kernel, a backend, a partitioner or a module is not known. Nothing has changed then.
        UnavailableError: no backend that fuses runs here, or the one that was asked for does not.
        UnsupportedError: the config asks for what `fuse` does not do.
        TypeError, ValueError: the model or a value of the config is none of the above.
    """
    if not isinstance(model, nn.Module) or isinstance(model, CompiledModule):
        raise TypeError(f"fuse takes an nn.Module that aotkit.compile has not compiled, not {type(model).__name__}.")
    chosen = config_of(config)
    before = [(module, type(module)) for module in model.modules() if is_fused(module)]
    unfuse(model)
    try:
        return _fused(model, chosen) if chosen.enable else model
    except BaseException:
        _set_classes(before)
        raise


def _fused(model: M, config: FusionConfig) -> M:
    if config.backend == "auto" and cpp_compiler() is None:
        raise UnavailableError("no backend that fuses runs here: there is no C++ compiler")
    decisions = decisions_of(model, config)
    fusion = Fusion(config, decisions)
    changed = {name for name, decision in decisions.items() if decision.outcome != "left"} | {""}
    modules = {name: model.get_submodule(name) for name in changed}
    _set_classes([(module, fusion.class_of(type(module), name)) for name, module in modules.items()])
    return model


def unfuse(model: M, /) -> M:
    """Take back what `fuse` changed of a model, or of a part of it. One that is not fused stays as it is.

    Returns:
        `model`.

    Raises:
        UnsupportedError: something else has changed the class of a module since. Nothing has changed then.
    """
    for name, module in model.named_modules():
        if isinstance(module, FusedModule) and not is_fused(module):
            raise UnsupportedError(
                f"{name or 'the model'} is a {type(module).__name__} now: its class was changed after fuse, as "
                "parametrize and fully_shard do. Undo that first."
            )
    _set_classes([(module, original_class(module)) for module in model.modules() if is_fused(module)])
    return model


def _set_classes(classes: Sequence[tuple[nn.Module, type]]) -> None:
    for module, cls in classes:
        module.__class__ = cls


def fusion_report(model: nn.Module, /) -> FusionReport:
    """What became of each module of a fused model, and what it saves; more is known after its first call.

    Raises:
        ValueError: the model is not fused.
    """
    if not is_fused(model):
        raise ValueError(f"{type(model).__name__} is not fused: call aotkit.fuse(model) first.")
    return report_of(model, type(model)._aotkit_fusion)  # type: ignore[attr-defined]
