"""Random operators, made of the words of `draws.Draws`. Whatever is not in `OPERATORS` keeps torch's own generator.

Each takes the draws and the operator's arguments, and does what the operator does. `NotImplemented` leaves a call to
torch: one with a generator of its own or a layout that is not strided, or one whose arguments torch refuses.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aotkit.random.draws import Draws, shifted

aten = torch.ops.aten

# Random bits of a number in [0, 1), as torch has them: as many as there are in the fraction of 0.5, and one.
BITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24}
INTEGER_BITS = {torch.uint8: 8, torch.int8: 7, torch.int16: 15, torch.int32: 31, torch.int64: 63}
_MASK = 2**32 - 1


def _at_least(draws: Draws, like: Tensor, probability: float) -> Tensor:
    """True with this probability. 0 and 1 take no draw, as eager's dropout takes none."""
    if probability in (0, 1):
        return torch.full(like.shape, probability == 1, dtype=torch.bool, device=like.device)
    (word,) = draws.next(like.shape, like.device)
    return word < round(probability * 2**32) - 2**31


def _uniform(draws: Draws, shape: Any, dtype: torch.dtype, device: Any) -> Tensor:
    """In [0, 1)."""
    if dtype is torch.float64:
        high, low = draws.next(shape, device, 2)
        return (high & 0x7FFFFFFF).double() * 2.0**-31 + ((low >> 10) & 0x3FFFFF).double() * 2.0**-53
    (word,) = draws.next(shape, device)
    bits = BITS[dtype]
    return (((word >> (32 - bits)) & ((1 << bits) - 1)).float() * 2.0**-bits).to(dtype)


def _open(word: Tensor, extra: Tensor | None) -> Tensor:
    """In (0, 1], down to 2^-32: in float32, or in float64 if there are extra bits."""
    high = word & 0x7FFFFFFF
    if extra is None:
        return (high.float() + 0.5) * 2.0**-31
    return high.double() * 2.0**-31 + ((extra & 0x7FFFFFFF).double() + 0.5) * 2.0**-62


def _exponential(draws: Draws, shape: Any, dtype: torch.dtype, device: Any) -> Tensor:
    """With mean 1; never 0, as torch's is not."""
    wide = dtype is torch.float64
    word, *extra = draws.next(shape, device, 2 if wide else 1)
    return (-_open(word, extra[0] if wide else None).log()).clamp_min(2.0 ** (-54 if wide else -25))


def _normal(draws: Draws, shape: Any, dtype: torch.dtype, device: Any) -> Tensor:
    """With mean 0 and variance 1, by the transform of Box and Muller; in float32 or float64."""
    wide = dtype is torch.float64
    angle, word, *extra = draws.next(shape, device, 3 if wide else 2)
    radius = (-2 * _open(word, extra[0] if wide else None).log()).sqrt()
    return radius * (angle.to(radius.dtype) * (math.pi * 2.0**-31)).cos()


def _integers(draws: Draws, shape: Any, count: int, device: Any) -> Tensor:
    """int64, in [0, count): the upper half of the 128-bit product of `count` and a 64-bit word.

    A value's probability is off by less than 2^-64.
    """
    high, low = (word.long() & _MASK for word in draws.next(shape, device, 2))
    upper, lower = count >> 32, count & _MASK
    middle = low * upper + shifted(low * lower, 32, 64)
    return high * upper + (middle >> 32) + shifted(high * lower + (middle & _MASK), 32, 64)


Fill = Callable[[Draws, Any, torch.dtype, Any], Tensor]


def _complex(fill: Fill, scale: float) -> Fill:
    """Complex numbers whose parts are drawn by `fill`, and scaled."""

    def filled(draws: Draws, shape: Any, dtype: torch.dtype, device: Any) -> Tensor:
        if not dtype.is_complex:
            return fill(draws, shape, dtype, device)
        real = torch.float64 if dtype is torch.complex128 else torch.float32
        return torch.view_as_complex(fill(draws, (*shape, 2), real, device) * scale)

    return filled


def _factory(fill: Fill) -> Any:
    def new(
        draws: Draws, size: Any, *, dtype: Any = None, device: Any = None, generator: Any = None, **options: Any
    ) -> Any:
        dtype = dtype or torch.get_default_dtype()
        if not _is_plain(options) or not _is_drawn(dtype):
            return NotImplemented
        return fill(draws, tuple(size), dtype, _device(device)).to(dtype)

    return new


def _factory_like(fill: Fill) -> Any:
    def new(draws: Draws, like: Tensor, *, generator: Any = None, **options: Any) -> Any:
        dtype = options.get("dtype") or like.dtype
        if not _is_plain(options, like) or not _is_drawn(dtype):
            return NotImplemented
        result = torch.empty_like(like, **options)
        return result.copy_(fill(draws, result.shape, dtype, result.device))

    return new


def _is_drawn(dtype: torch.dtype) -> bool:
    return dtype in BITS or dtype in (torch.float64, torch.complex64, torch.complex128)


def _is_plain(options: dict[str, Any], *like: Tensor) -> bool:
    """Whether what an operator makes is strided, and not in pinned memory."""
    layouts = [options.get("layout"), *(tensor.layout for tensor in like)]
    return not options.get("pin_memory") and all(layout in (None, torch.strided) for layout in layouts)


def _device(device: Any) -> torch.device:
    return torch.get_default_device() if device is None else torch.device(device)


def _in_place(values: Callable[..., Any]) -> Any:
    """A mutating operator, from a function that computes what the tensor is filled with."""

    def fill(draws: Draws, self: Tensor, *args: Any, generator: Any = None, **kwargs: Any) -> Tensor:
        found = values(draws, self, *args, **kwargs) if self.layout is torch.strided else NotImplemented
        return found if found is NotImplemented else self.copy_(found)

    return fill


def _functional(values: Callable[..., Any]) -> Any:
    """The same for the operator that returns a new tensor."""
    filled = _in_place(values)

    def new(draws: Draws, self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return filled(draws, torch.empty_like(self), *args, **kwargs)  # type: ignore[no-any-return]

    return new


def _uniform_values(draws: Draws, self: Tensor, start: float = 0.0, end: float = 1.0) -> Any:
    if (self.dtype not in BITS and self.dtype is not torch.float64) or not start <= end:
        return NotImplemented
    return _uniform(draws, self.shape, self.dtype, self.device) * (end - start) + start


def _normal_values(draws: Draws, self: Tensor, mean: float = 0.0, std: float = 1.0) -> Any:
    if not _is_drawn(self.dtype) or not std >= 0:
        return NotImplemented
    return _FILL_NORMAL(draws, self.shape, self.dtype, self.device) * std + mean


def _exponential_values(draws: Draws, self: Tensor, rate: float = 1.0) -> Any:
    if not self.is_floating_point() or not 0 < rate < math.inf:
        return NotImplemented
    return _exponential(draws, self.shape, self.dtype, self.device) / rate


def _log_normal_values(draws: Draws, self: Tensor, mean: float = 1.0, std: float = 2.0) -> Any:
    if not self.is_floating_point() or not std > 0:
        return NotImplemented
    return (_normal(draws, self.shape, self.dtype, self.device) * std + mean).exp()


def _bernoulli_values(draws: Draws, self: Tensor, p: Any = 0.5) -> Any:
    if isinstance(p, Tensor):
        p = p.to(self.device)
        return _below(draws, p.expand(self.shape))
    return _at_least(draws, self, p) if 0 <= p <= 1 else NotImplemented


def _below(draws: Draws, p: Tensor) -> Tensor:
    """True with these probabilities."""
    wide = torch.float64 if p.dtype is torch.float64 else torch.float32
    return _uniform(draws, p.shape, wide, p.device) < p


def _random_values(draws: Draws, self: Tensor, start: int | None = None, end: int | None = None) -> Any:
    if start is None:
        bits = INTEGER_BITS.get(self.dtype) or {torch.bool: 1}.get(self.dtype) or BITS.get(self.dtype, 53)
        return _integers(draws, self.shape, 2**bits + self.dtype.is_floating_point, self.device)
    if end is None or not start < end or end - start > 2**63 or not _holds(self.dtype, start, end - 1):
        return NotImplemented
    return _integers(draws, self.shape, end - start, self.device) + start


def _holds(dtype: torch.dtype, *values: int) -> bool:
    if dtype.is_floating_point:
        return all(abs(v) <= 2 ** BITS.get(dtype, 53) for v in values)
    return dtype in INTEGER_BITS and all(torch.iinfo(dtype).min <= v <= torch.iinfo(dtype).max for v in values)


def _native_dropout(draws: Draws, input: Tensor, p: float, train: bool | None) -> Any:
    if train is False or not 0 <= p <= 1 or input.layout is not torch.strided:
        return NotImplemented
    kept = _at_least(draws, input, 1 - p)
    return input * kept * (0.0 if p == 1 else 1 / (1 - p)), kept


def _randint(
    draws: Draws, low: int, high: int, size: Any, *, dtype: Any = None, device: Any = None, **options: Any
) -> Any:
    if not _is_plain(options) or not 0 < high - low <= 2**63:
        return NotImplemented
    return (_integers(draws, tuple(size), high - low, _device(device)) + low).to(dtype or torch.int64)


def _randint_like(draws: Draws, like: Tensor, low: int, high: int, **options: Any) -> Any:
    if not _is_plain(options, like) or not 0 < high - low <= 2**63:
        return NotImplemented
    result = torch.empty_like(like, **options)
    return result.copy_(_integers(draws, result.shape, high - low, result.device) + low)


def _randperm(draws: Draws, n: int, *, dtype: Any = None, device: Any = None, **options: Any) -> Any:
    """The order of random 63-bit numbers."""
    if not _is_plain(options):
        return NotImplemented
    return _integers(draws, (n,), 2**63, _device(device)).argsort(stable=True).to(dtype or torch.int64)


def _multinomial(draws: Draws, self: Tensor, num_samples: int, replacement: bool = False) -> Any:
    """Indices with probabilities proportional to these; without replacement, of the first among exponential times."""
    count = self.shape[-1] if self.dim() else 0
    if not _is_drawn(self.dtype) or self.is_complex() or not num_samples > 0 or not count:
        return NotImplemented
    if not replacement and num_samples > count:
        return NotImplemented
    wide = torch.float64 if self.dtype is torch.float64 else torch.float32
    weights = self.to(wide) / self.to(wide).amax(-1, keepdim=True)
    if not replacement:
        times = _exponential(draws, self.shape, wide, self.device)
        return (weights / times).topk(num_samples, dim=-1).indices
    limits = weights.cumsum(-1)
    total = limits[..., -1:]
    places = _uniform(draws, (*self.shape[:-1], num_samples), wide, self.device) * total
    # Below the total, so that it is not rounded to a category after the last one that has any probability.
    places = places.clamp_max(total * (1 - torch.finfo(wide).eps))
    return torch.searchsorted(limits, places, right=True).clamp_max(count - 1)


def _rrelu(draws: Draws, self: Tensor, noise: Tensor, lower: float = 1 / 8, upper: float = 1 / 3,
           training: bool = False, generator: Any = None) -> Any:  # fmt: skip
    if not training or not lower <= upper:
        return NotImplemented
    slope = _uniform_values(draws, self, lower, upper)
    noise.copy_(torch.where(self <= 0, slope, 1.0))
    return self * noise


def _normal_of(draws: Draws, mean: Any, std: Any = 1.0, **options: Any) -> Any:
    """`torch.normal` of tensors."""
    tensors = [t for t in (mean, std) if isinstance(t, Tensor)]
    if not all(_is_drawn(t.dtype) and not t.is_complex() for t in tensors):
        return NotImplemented
    shape = torch.broadcast_shapes(*(t.shape for t in tensors))  # type: ignore[no-untyped-call]
    dtype = tensors[0].dtype
    return (_normal(draws, shape, dtype, tensors[0].device) * std + mean).to(dtype)


def _normal_of_size(draws: Draws, mean: float, std: float, size: Any, **options: Any) -> Any:
    found = _factory(_FILL_NORMAL)(draws, size, **options) if std >= 0 else NotImplemented
    return found if found is NotImplemented else found * std + mean


_FILL_UNIFORM, _FILL_NORMAL = _complex(_uniform, 1.0), _complex(_normal, math.sqrt(0.5))

OPERATORS: dict[Any, Callable[..., Any]] = {
    aten.native_dropout.default: _native_dropout,
    aten.rand.default: _factory(_FILL_UNIFORM),
    aten.rand_like.default: _factory_like(_FILL_UNIFORM),
    aten.randn.default: _factory(_FILL_NORMAL),
    aten.randn_like.default: _factory_like(_FILL_NORMAL),
    aten.bernoulli_.float: _in_place(_bernoulli_values),
    aten.bernoulli_.Tensor: _in_place(_bernoulli_values),
    aten.bernoulli.p: _functional(_bernoulli_values),
    aten.bernoulli.Tensor: _functional(_bernoulli_values),
    aten.bernoulli.default: lambda draws, self, generator=None: _below(draws, self).to(self.dtype),
    aten.uniform_.default: _in_place(_uniform_values),
    aten.uniform.default: _functional(_uniform_values),
    aten.normal_.default: _in_place(_normal_values),
    aten.normal_functional.default: _functional(_normal_values),
    aten.normal.Tensor_float: _normal_of,
    aten.normal.float_Tensor: _normal_of,
    aten.normal.Tensor_Tensor: _normal_of,
    aten.normal.float_float: _normal_of_size,
    aten.exponential_.default: _in_place(_exponential_values),
    aten.exponential.default: _functional(_exponential_values),
    aten.log_normal_.default: _in_place(_log_normal_values),
    aten.log_normal.default: _functional(_log_normal_values),
    aten.randint.default: lambda draws, high, size, **options: _randint(draws, 0, high, size, **options),
    aten.randint.low: _randint,
    aten.randint_like.default: lambda draws, like, high, **options: _randint_like(draws, like, 0, high, **options),
    aten.randint_like.low_dtype: _randint_like,
    getattr(aten.random_, "from"): _in_place(_random_values),
    aten.random_.to: _in_place(lambda draws, self, end: _random_values(draws, self, 0, end)),
    aten.random_.default: _in_place(_random_values),
    aten.randperm.default: _randperm,
    aten.multinomial.default: _multinomial,
    aten.rrelu_with_noise.default: _rrelu,
    aten.rrelu_with_noise_.default: _in_place(_rrelu),
}


def replacement(func: Any, args: Any, kwargs: dict[str, Any]) -> Callable[..., Any] | None:
    """What takes the place of an operator, if anything does: not where it is given a generator."""
    if any(isinstance(a, torch.Generator) for a in (*args, *kwargs.values())):
        return None
    return OPERATORS.get(func)
