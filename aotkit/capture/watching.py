"""Watch a function while it is traced: what it asks that a graph does not hold."""

import pickle
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from aotkit.errors import TraceError
from aotkit.random import other_random_states, random_state, watched_generator
from aotkit.torch_private.dispatch import RESIZES, AsInEager, tree_leaves
from aotkit.torch_private.fake_tensors import fake_mode
from aotkit.torch_private.switches import SWITCHED, environment
from aotkit.torch_private.tensors import is_view

_VIEWS = frozenset({"view", "view_as", "reshape", "reshape_as", "unflatten"})
_ARITHMETIC = frozenset({"add", "radd", "sub", "rsub", "mul", "rmul", "div", "truediv", "true_divide"})
_DROPS_COMPLEX_NUMBERS = torch.__version__ >= "2.15"  # before, eager refuses


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


def _resizes_better(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether it resizes images, and ATen's gradient is better than one that is written by index.

    That of bicubic ones is not (16 x 64 x 56 x 56 twice as large, H200: 3.3 ms, not 0.8). ATen knows no open sizes.
    """
    if func is not F.interpolate and func not in RESIZES:
        return False
    values = tree_leaves((args, kwargs))
    name = RESIZES.get(func) or "".join(v for v in values if isinstance(v, str))
    sizes = (n for v in values for n in (v.shape if isinstance(v, Tensor) else [v]))
    return "cubic" not in name and not any(isinstance(n, torch.SymInt) for n in sizes)


def has_other_steps(func: Any, args: Sequence[Any], result: Any) -> bool:
    """Whether this is an image of which dimensions of size 1 have other strides in eager.

    Eager's views step over those by the whole of the next dimension, and arithmetic with a number keeps that; torch's
    rules for tracing have other strides, with which one image may look as if channels came last: what follows
    (`F.group_norm`) would not be copied, as it is in eager.
    """
    name = getattr(func, "__name__", func)
    name = name.strip("_") if isinstance(name, str) else ""
    if name in _VIEWS:
        return _is_odd(result) and not (isinstance(args[0], Tensor) and args[0].shape == result.shape)
    is_with_number = name in _ARITHMETIC and any(isinstance(x, int | float) for x in args)
    return is_with_number and _is_odd(result) and not any(map(_is_odd, args))


def _is_odd(value: Any) -> bool:
    if not isinstance(value, Tensor) or value.dim() not in (4, 5):
        return False
    sizes, strides = value.shape, value.stride()
    if not all(type(n) is int for n in (*sizes, *strides)):
        return False
    return any(sizes[i] == 1 and strides[i] != sizes[i + 1] * strides[i + 1] for i in range(len(sizes) - 1))


def _with_eagers_steps(result: Tensor) -> Tensor:
    for i in range(result.dim() - 2, -1, -1):
        if result.shape[i] == 1:
            result = result.squeeze(i).unsqueeze(i)
    return result


class EagersFunctions(TorchFunctionMode):
    """While a function is traced, some others are those of eager, where torch's rules for tracing are not as good.

    Dropout returns what it returns in eager: without a mask, the input itself. What resizes images has its own
    gradient, which adds up a window for each pixel; torch's rule reads each pixel by an index, before it knows of
    gradients, and these would be written by index: sorted, or one at a time. Views have eager's strides.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.dropout and (result := _own_dropout(*args, **kwargs)) is not None:
            return result
        with AsInEager() if _resizes_better(func, args, kwargs) else nullcontext():
            result = func(*args, **kwargs)
        return _with_eagers_steps(result) if args and has_other_steps(func, args, result) else result


class TensorReads(EagersFunctions):
    """Watches what a traced function asks about its inputs that a graph does not hold.

    Attributes:
        inputs: ids of the tensors that stand for the inputs.
        offsets: whether the function asks where in its storage a tensor begins. Most inputs are slices of something,
            and should not be held to that.
    """

    _OFFSETS = frozenset({Tensor.storage_offset, Tensor.as_strided, torch.as_strided, Tensor.as_strided_})
    _STATE = frozenset(
        {getattr(Tensor, name).__get__ for name in ("grad", "grad_fn", "is_leaf", "_base", "_version")}
        | {is_view, Tensor.requires_grad_, Tensor.retain_grad, Tensor.register_hook}
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
def no_other_randomness(name: str) -> Iterator[None]:
    """Refuse a function that does with random generators, or with global switches, what a graph cannot do.

    Raises:
        TraceError: it draws from Python's or NumPy's generator, seeds torch's or sets its state, or leaves a switch
            such as the default dtype changed.
    """
    before = pickle.dumps(other_random_states())
    seed = torch.initial_seed()
    switches = environment()[1:]
    with watched_generator() as generator:
        yield
    if pickle.dumps(other_random_states()) != before:
        raise TraceError(
            f"{name!r} draws random numbers from Python's or NumPy's generator; a compiled graph would repeat the "
            "same ones for ever. Draw with torch, or pass the numbers as arguments."
        )
    if generator.was_seeded or torch.initial_seed() != seed:
        raise TraceError(f"{name!r} seeds torch's random generator; a compiled graph would not. Seed outside of it.")
    if generator.was_set:
        raise TraceError(
            f"{name!r} sets the state of torch's random generator (set_rng_state, fork_rng); a compiled graph would "
            "not. Do that outside of it, or use capture='dynamo', which splits the function there."
        )
    if environment()[1:] != switches:
        raise TraceError(SWITCHED.format(repr(name)))


class Fakes:
    """Fake copies of tensors, one for each."""

    def __init__(self) -> None:
        self._mode = fake_mode()
        self._reads = TensorReads()
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}  # id -> the tensor, and its copy

    def of(self, tensor: Tensor) -> Tensor:
        """The fake copy of a tensor; of such a copy, itself."""
        if self._mode.is_our_fake(tensor):
            return tensor
        if id(tensor) not in self._copies:
            fake = self._mode.from_tensor(tensor)
            self._copies[id(tensor)] = tensor, fake
            self._reads.inputs.add(id(fake))
        return self._copies[id(tensor)][1]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Operators take fake tensors alone, and refuse real ones; random generators stay as they are."""
        with warnings.catch_warnings(), torch.set_grad_enabled(torch.is_grad_enabled()), random_state():
            # Fake copies are made of `.grad` too, which warns for tensors that are not leaves.
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor")
            with self._mode, self._reads:
                yield


def beyond_values(tensor: Tensor, inputs: Sequence[Any]) -> str | None:
    """What a tensor inside a traced function has that is no value, and that a result of a graph would lack."""
    if any(tensor is x for x in inputs):
        return None
    is_differentiable = any(isinstance(x, Tensor) and x.requires_grad for x in inputs)
    if tensor.requires_grad and (tensor.is_leaf or not is_differentiable):
        return "a gradient of its own"
    if tensor.retains_grad:
        return "a gradient that it retains"
    attributes = vars(tensor).keys() - {"elem", "_inference_mode_base"}  # functionalization's own
    return f"the attribute {min(attributes)!r}" if attributes else None
