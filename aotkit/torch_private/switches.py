"""Switches, modes and transforms that surround a call."""

import sys
from collections.abc import Hashable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.utils import _config_module

DisableAutocast = torch._C._DisableAutocast
is_autocast_on = torch._C._is_any_autocast_enabled
is_deterministic = torch._C._get_deterministic_algorithms

# What surrounds a call, as Python expressions: a guard evaluates each on every call, so each costs some 20 ns.
# `SURROUNDINGS` has the names that they use.

# What torch's `_has_any_global_hook` looks at; that is a function in Python.
_HOOKS = ("backward_pre", "backward", "forward_pre", "forward")
_GLOBAL_HOOKS = " or ".join(f"modules._global_{kind}_hooks" for kind in _HOOKS)
# Whatever is true here tells why a compiled graph must not run now: something outside wants to see every operation.
REASONS_FOR_EAGER = {
    "transform() is not None": "it is called inside a functorch transform (grad, vmap, jvp, ...)",
    "dispatch_modes()": "a TorchDispatchMode is active",
    "function_modes() and foreign_mode()": "a TorchFunctionMode is active",
    "forward_ad._current_level >= 0": "it is called inside forward_ad.dual_level()",
    "jit_trace() is not None": "torch.jit is tracing it",
    "parametrize._cache_enabled": "torch.nn.utils.parametrize.cached() is active",
    _GLOBAL_HOOKS: "a global module hook is registered",
}
# Global switches that decide what a function computes or how it is compiled, the gradient mode first.
SWITCHES = (
    "grad_enabled()",
    "inference_mode()",
    "autocast() if any_autocast() else None",
    "default_dtype()",
    "default_device() if function_modes() else None",
    "deterministic()",
    "deterministic_warns()",
    "matmul_precision()",
    "flash_attention()",
    "efficient_attention()",
    "math_attention()",
    "cudnn()",
    "cudnn_benchmark()",
)


SETTINGS = ("torch._dynamo.config", "torch._functorch.config", "torch._inductor.config")
SWITCHED = (
    "{} leaves a global switch of torch changed: the default dtype or device, autocast, determinism, the precision of "
    "matrix products, or which kernels attention, cuDNN or oneDNN may use. A compiled graph would not. Set it outside."
)


def _foreign_mode() -> bool:
    """Whether a TorchFunctionMode is active that is not torch's own for the default device."""
    modes = map(torch._C._get_function_stack_at, range(torch._C._len_torch_function_stack()))
    return not all(isinstance(mode, _device_context()) for mode in modes)


def _device_context() -> type:
    from torch.utils._device import DeviceContext

    return DeviceContext


def _autocast() -> Hashable:
    return tuple((torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda"))


SURROUNDINGS: dict[str, Any] = {
    "transform": torch._C._functorch.peek_interpreter_stack,
    "dispatch_modes": torch._C._len_torch_dispatch_stack,
    "function_modes": torch._C._len_torch_function_stack,
    "foreign_mode": _foreign_mode,
    "forward_ad": torch.autograd.forward_ad,
    "jit_trace": torch._C._get_tracing_state,
    "parametrize": parametrize,
    "modules": nn.modules.module,
    "grad_enabled": torch.is_grad_enabled,
    "inference_mode": torch.is_inference_mode_enabled,
    "any_autocast": torch._C._is_any_autocast_enabled,
    "autocast": _autocast,
    "default_dtype": torch.get_default_dtype,
    "default_device": torch.get_default_device,
    "deterministic": torch._C._get_deterministic_algorithms,
    "deterministic_warns": torch._C._get_deterministic_algorithms_warn_only,
    "matmul_precision": torch._C._get_float32_matmul_precision,
    "flash_attention": torch._C._get_flash_sdp_enabled,
    "efficient_attention": torch._C._get_mem_efficient_sdp_enabled,
    "math_attention": torch._C._get_math_sdp_enabled,
    "cudnn": torch._C._get_cudnn_enabled,
    "cudnn_benchmark": torch._C._get_cudnn_benchmark,
}
_switches = compile(f"({', '.join(SWITCHES)})", "<aotkit switches>", "eval")
_reasons = compile(f"({', '.join(REASONS_FOR_EAGER)})", "<aotkit reasons>", "eval")


def environment() -> tuple[Hashable, ...]:
    """The values of all switches."""
    return eval(_switches, SURROUNDINGS)  # type: ignore[no-any-return]


def why_eager() -> str | None:
    """Why a compiled graph must not run now, if there is a reason."""
    reasons = zip(REASONS_FOR_EAGER.values(), eval(_reasons, SURROUNDINGS), strict=True)
    return next((reason for reason, holds in reasons if holds), None)


def changed_settings() -> list[str] | None:
    """Settings of Inductor, AOTAutograd and Dynamo that the program has changed; None if one of them holds code.

    A module that nobody has imported has none. What the environment decides is not among them.
    """
    modules = [module for name in SETTINGS if (module := sys.modules.get(name)) is not None]
    changed = [
        (f"{module.__name__}.{name}", value)
        for module in modules
        for name, entry in sorted(module._config.items())
        for value in _changed(entry)
    ]
    return [f"{name} = {value!r}" for name, value in changed] if all(_is_data(value) for _, value in changed) else None


def _is_data(value: Any) -> bool:
    """Whether a value is no more than its `repr`: neither a function nor an object of somebody's."""
    if isinstance(value, dict):
        return type(value) is dict and all(map(_is_data, (*value, *value.values())))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_data, value))
    return type(value) in (type(None), bool, int, float, str)


def _changed(entry: Any) -> list[Any]:
    """The value of a setting, if the program has given it another one than it had."""
    unset, own = _config_module._UNSET_SENTINEL, entry.user_override
    if isinstance(own, ContextVar):  # since torch 2.14
        own = own.get()
    before = entry.default if entry.env_value_default is unset else entry.env_value_default
    return [] if own is unset or own == before else [own]


def without_autocast() -> AbstractContextManager[Any]:
    """Graphs run under this: they have the casts of autocast already."""
    return DisableAutocast()
