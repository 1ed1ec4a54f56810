"""What surrounds a call: switches, modes and transforms, and what a graph assumes of its inputs."""

import gc
import pickle
import random
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

from aotkit.aot.randomness import watched_generator
from aotkit.errors import TraceError

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

_DROPS_COMPLEX_NUMBERS = torch.__version__ >= "2.15"  # before, eager refuses

_switches = compile(f"({', '.join(SWITCHES)})", "<aotkit switches>", "eval")
_reasons = compile(f"({', '.join(REASONS_FOR_EAGER)})", "<aotkit reasons>", "eval")


def environment() -> tuple[Hashable, ...]:
    """The values of all switches."""
    return eval(_switches, SURROUNDINGS)  # type: ignore[no-any-return]


def why_eager() -> str | None:
    """Why a compiled graph must not run now, if there is a reason."""
    reasons = zip(REASONS_FOR_EAGER.values(), eval(_reasons, SURROUNDINGS), strict=True)
    return next((reason for reason, holds in reasons if holds), None)


def _own_dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor | None:
    """What eager's `F.dropout` returns, where torch's decomposition returns something else or draws other numbers."""
    # A size that is open is no zero: that is a constant to tracing.
    if not training or p == 0 or (not isinstance(n := input.numel(), torch.SymInt) and n == 0):
        return input
    if inplace or not 0 < p <= 1:
        return None
    if p == 1:
        return input * torch.zeros((), dtype=input.dtype, device=input.device)
    if not input.is_complex() or not _DROPS_COMPLEX_NUMBERS:
        return None
    kept = torch.empty_like(input, dtype=input.dtype.to_real()).bernoulli_(1 - p)
    return input * kept.div_(1 - p)


class EagersDropout(TorchFunctionMode):
    """While a function is traced, its dropout returns what it returns in eager: without a mask, the input itself."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.dropout and (result := _own_dropout(*args, **(kwargs or {}))) is not None:
            return result
        return func(*args, **(kwargs or {}))


class TensorReads(EagersDropout):
    """Watches what a traced function asks about its inputs that a graph does not hold.

    Attributes:
        inputs: ids of the tensors that stand for the inputs.
        offsets: whether the function asks where in its storage a tensor begins. Most inputs are slices of something,
            and should not be held to that.
    """

    _OFFSETS = frozenset({Tensor.storage_offset, Tensor.as_strided, torch.as_strided, Tensor.as_strided_})
    _STATE = frozenset(
        {getattr(Tensor, name).__get__ for name in ("grad", "grad_fn", "is_leaf", "_base", "_version")}
        | {Tensor._is_view, Tensor.requires_grad_, Tensor.retain_grad, Tensor.register_hook}
    )

    _SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]

    def __init__(self) -> None:
        super().__init__()
        self.inputs: set[int] = set()
        self.offsets = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.offsets = self.offsets or func in self._OFFSETS
        change = {"__set__": "assigns", "__delete__": "deletes"}.get(getattr(func, "__name__", ""))
        # Whatever has its data replaced shares memory from then on, which tracing does not see.
        if func == self._SET_DATA or ((change or func in self._STATE) and args and id(args[0]) in self.inputs):
            what = getattr(getattr(func, "__self__", func), "__name__", "an attribute")
            raise TraceError(
                f"the function {change or 'uses'} {what!r} of a tensor, which belongs to the tensor of "
                "one call and not to a graph. Do that outside of the compiled function."
            )
        return super().__torch_function__(func, types, args, kwargs)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """What the collector takes, and frees, would count as what runs meanwhile takes and frees.

    Threads that do this at the same time leave the collector running in the end: the first one turns it on again.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_were_enabled: list[bool] = []  # whether the collector ran, before each `collecting_later` that is under way
_others_freeze = False  # what they have frozen is not ours to unfreeze, and to count it takes as long as there is of it


@contextmanager
def collecting_later() -> Iterator[None]:
    """While a graph is traced and cut. The collector would go through all of its nodes again and again."""
    global _others_freeze
    _were_enabled.append(gc.isenabled())
    gc.disable()
    try:
        yield
    finally:
        if _were_enabled.pop():
            _others_freeze = _others_freeze or gc.get_freeze_count() > 0
            if not _others_freeze:
                gc.freeze()  # what was made meanwhile counts as old now: the next collection does not go through it
                gc.unfreeze()
            gc.enable()


@contextmanager
def collecting() -> Iterator[None]:
    """Within `collecting_later`, while other people's code runs, which may leave much to collect."""
    is_postponed = any(_were_enabled) and not gc.isenabled()
    if is_postponed:
        gc.enable()
    try:
        yield
    finally:
        if is_postponed:
            gc.disable()


@contextmanager
def random_state() -> Iterator[None]:
    """Put all random generators, also Python's and NumPy's, back at the end to where they were at the start."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    others = _other_random_states()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(others[0])
            if len(others) > 1:
                sys.modules["numpy"].random.set_state(others[1])


@contextmanager
def no_other_randomness(name: str) -> Iterator[None]:
    """Refuse a function that does with random generators, or with global switches, what a graph cannot do.

    Raises:
        TraceError: it draws from Python's or NumPy's generator, seeds torch's or sets its state, or leaves a switch
            such as the default dtype changed.
    """
    before = pickle.dumps(_other_random_states())
    seed = torch.initial_seed()
    switches = environment()[1:]
    with watched_generator() as generator:
        yield
    if pickle.dumps(_other_random_states()) != before:
        raise TraceError(
            f"{name!r} draws random numbers from Python's or NumPy's generator; a compiled graph would repeat the "
            "same ones for ever. Draw with torch, or pass the numbers as arguments."
        )
    if torch.initial_seed() != seed:
        raise TraceError(f"{name!r} seeds torch's random generator; a compiled graph would not. Seed outside of it.")
    if generator.was_set:
        raise TraceError(
            f"{name!r} sets the state of torch's random generator (set_rng_state, fork_rng); a compiled graph would "
            "not. Do that outside of it, or use capture='dynamo', which splits the function there."
        )
    if environment()[1:] != switches:
        raise TraceError(SWITCHED.format(repr(name)))


SWITCHED = (
    "{} leaves a global switch of torch changed: the default dtype or device, autocast, determinism, the precision of "
    "matrix products, or which kernels attention, cuDNN or oneDNN may use. A compiled graph would not. Set it outside."
)


def _other_random_states() -> list[Any]:
    numpy = sys.modules.get("numpy")
    return [random.getstate(), *([numpy.random.get_state()] if numpy is not None else [])]


def without_saved_tensor_hooks() -> AbstractContextManager[Any]:
    """Keep the caller's hooks for saved tensors, if there are any, from what runs inside."""
    # Not always: functorch refuses any hooks, and the caller may have disabled them.
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        return nullcontext()
    return saved_tensors_hooks(lambda t: t, lambda t: t)


def without_compiled_autograd() -> AbstractContextManager[Any]:
    """Keep torch's compiled autograd, if it is on, from what runs inside.

    A call of a function that Dynamo compiles is inside of it where `torch._dynamo.config.compiled_autograd` is set.
    """
    module: Any = sys.modules.get("torch._dynamo.compiled_autograd")
    return module._disable() if module is not None and module.compiled_autograd_enabled else nullcontext()


def current_stream(device: torch.device) -> int:
    """The stream of a CUDA device on which this thread works; `torch.cuda.current_stream` makes an object of it."""
    return int(torch._C._cuda_getCurrentRawStream(device.index))
