"""What counts as equal: how far rounding may move a value, by its size and by how eager's rounding moves it."""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from aotkit.checking.in_pieces import is_floating, magnitude, pieces, same_values

# Relative to each element. Fused arithmetic rounds less often than eager's, or in another order.
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
# An element that is small because larger ones cancel carries their rounding errors: so many units in the last place of
# the tensor's largest value. Sums of many numbers, and values that are little else than rounding errors, such as the
# gradient of a bias before a batch norm, exceed that; then runs in float64 decide.
CANCELLED = 8
# How many times the distance of eager, or of a nudged run, from float64 the compiled function may be away from it, and
# how much larger the elements may be among which that distance is looked for.
WORSE_THAN_EAGER = 10.0
# The same for the root of the mean square over a tensor. Eager rounds after each operation, fused arithmetic less
# often; what keeps float16 or bfloat16 between operations where eager does not, or adds up in them, is farther off.
LESS_EXACT = {torch.float16: 3.0, torch.bfloat16: 3.0}
# Half a unit in the last place is no matter. Without other runs, nor is four by the root of the number of elements:
# eager's value may be exact by chance.
FLOOR, FLOOR_OF_FEW = 0.5, 4.0
# By how many units in their last place rounded values are moved to see how sensitive a result is. The tolerance of
# float32 is about 800 units, that of the half types a few, so those are moved less: as rounding does.
NUDGE, NUDGE_OF_HALVES = 8.0, 0.3
# Of its size, how far a tensor goes by rounding where it is judged as a whole and not by its elements; and how many
# times farther than any other run it may be then.
CHAOTIC, FARTHER = 0.02, 3.0

# The tolerance where eager works in a lower precision than the types of the values tell.
MOST_LOWERED = TOLERANCE[torch.bfloat16]


def tolerance(dtype: torch.dtype) -> float:
    """The relative tolerance for values of a real type."""
    return TOLERANCE.get(dtype, 0.2)


def allowed_difference(want: Tensor, dtype: torch.dtype, largest: float) -> Tensor:
    """For each element of a value that was computed in the real type `dtype`, the difference that rounding explains.

    `largest` is the magnitude of the tensor's largest element.
    """
    share = min(tolerance(dtype), CANCELLED * torch.finfo(dtype).eps)
    return tolerance(dtype) * want.abs() + (share * largest + 1e-34)


class Sample(NamedTuple):
    """A value of one run, by its float64 value.

    Attributes:
        distance: the root mean square of the distances of the elements.
        share: how much of the float64 value is in it: 1 where all is, -1 where the sign is another.
    """

    distance: float
    share: float


@dataclass
class Spread:
    """How far a value goes when rounding on the way to it differs.

    Attributes:
        jumps: for each element, the largest distance from its float64 value; for other types, whether it changed.
        samples: one for each run.
    """

    jumps: Tensor
    samples: list[Sample] = field(default_factory=list)

    @classmethod
    def around(cls, exact: Tensor) -> "Spread":
        """That of no run."""
        return cls(torch.zeros(exact.shape, dtype=torch.float64, device=exact.device))

    @property
    def size(self) -> float:
        """The largest root mean square of the distances."""
        return max((sample.distance for sample in self.samples), default=0.0)

    def add(self, moved: Tensor, exact: Tensor, want: Tensor) -> None:
        """One more run."""
        for jump, m, e in pieces(self.jumps, moved, exact):
            changed = (m - e).abs().nan_to_num(0.0, 0.0, 0.0) if is_floating(e) else (m != e).to(jump)
            jump.copy_(torch.maximum(jump, changed))
        if is_floating(exact):
            self.samples.append(sample_of(moved, exact, want))

    def scaled(self, factor: float) -> "Spread":
        """That of rounding which is larger."""
        samples = [Sample(factor * s.distance, 1 + factor * (s.share - 1)) for s in self.samples]
        return Spread(self.jumps * factor, samples)


def are_close(a: Tensor, b: Tensor) -> bool:
    """Whether float64 values are the same but for the order in which a GPU adds up."""
    if not is_floating(a):
        return torch.equal(a, b)
    limit = TOLERANCE[torch.float64] * magnitude(b)
    return all(bool(((x - y).abs().nan_to_num() <= limit).all()) for x, y in pieces(a, b))


def in_float64(values: Tensor) -> Tensor:
    """The same values; floating-point and complex ones in the widest type."""
    if not is_floating(values):
        return values.clone()
    return values.to(torch.complex128 if values.is_complex() else torch.float64, copy=True)


def nudge(dtype: torch.dtype) -> float:
    """The standard deviation of the relative amounts by which rounded values of a type are moved."""
    return (NUDGE_OF_HALVES if dtype in LESS_EXACT else NUDGE) * torch.finfo(dtype).eps


def sample_of(values: Tensor, exact: Tensor, want: Tensor) -> Sample:
    """A value of one run, where its float64 value and eager's are finite."""
    totals = [0.0] * 4
    for v, e, w in pieces(values, exact, want):
        finite = w.isfinite() & e.isfinite()
        e, v = torch.where(finite, e, 0), torch.where(finite, v.to(e.dtype), 0)
        sums = (v - e).abs().square().sum(), (v * e.conj()).sum().real, e.abs().square().sum(), finite.sum()
        # At once: a device is waited for each time.
        totals = [a + b for a, b in zip(totals, torch.stack([x.to(torch.float64) for x in sums]).tolist(), strict=True)]
    far, along, size, count = totals
    return Sample((far / count) ** 0.5 if count else 0.0, along / size if size else 1.0)


def distance(values: Tensor, exact: Tensor, want: Tensor) -> float:
    """The root mean square of the distance from float64 values, where these and eager's are finite."""
    return sample_of(values, exact, want).distance


def size_of(exact: Tensor, want: Tensor) -> float:
    """The root mean square of float64 values, where they and eager's are finite."""
    return distance(exact.new_zeros(()).expand_as(exact), exact, want)


def is_less_exact(got: Tensor, want: Tensor, exact: Tensor, spread: Spread | None = None) -> bool:
    """Whether a compiled value is altogether farther from its float64 value than eager's is, beyond rounding."""
    if not is_floating(want):
        return False
    if not (count := sum(int((w.isfinite() & e.isfinite()).sum()) for w, e in pieces(want, exact))):
        return False
    real = want.real.dtype
    own = max(distance(want, exact, want), spread.size if spread else 0.0)
    worse = LESS_EXACT.get(real, WORSE_THAN_EAGER)
    floor = FLOOR if spread else FLOOR + FLOOR_OF_FEW / count**0.5
    floor *= torch.finfo(real).eps * size_of(exact, want)
    return bool(distance(got, exact, want) > worse * own + floor)


def is_rounding(got: Tensor, want: Tensor, exact: Tensor, spread: Spread, scale: float) -> bool:
    """Whether rounding explains how a compiled value differs from eager's.

    `scale` is the magnitude of the largest value of its kind, outputs or gradients, in eager.
    """
    if not is_floating(want):
        pairs = pieces(got, want, exact, spread.jumps)
        return all(bool(((g == w) | (w != e) | (jumps > 0)).all()) for g, w, e, jumps in pairs)
    got, want, exact = without_overflow(got, want, exact, spread)
    if not _same_finite(got, want) or is_less_exact(got, want, exact, spread):
        return False
    return _is_by_elements(got, want, exact, spread, scale) or _is_as_a_whole(got, want, exact, spread)


def _is_as_a_whole(got: Tensor, want: Tensor, exact: Tensor, spread: Spread) -> bool:
    """Whether a value that rounding changes by much is a value as others that rounding gives.

    Its elements are then anybody's guess, but not how far it is from its float64 value altogether, nor the furthest
    of them, nor how much of that value is in it: a missing term or another sign shows there.
    """
    if spread.size < CHAOTIC * size_of(exact, want):
        return False
    found, others = sample_of(got, exact, want), [*spread.samples, sample_of(want, exact, want)]
    furthest = max(_furthest(want, exact, want), magnitude(spread.jumps))
    return (
        found.distance <= FARTHER * max(other.distance for other in others)
        and abs(found.share - 1) <= FARTHER * max(abs(other.share - 1) for other in others)
        and _furthest(got, exact, want) <= FARTHER * furthest
    )


def _furthest(values: Tensor, exact: Tensor, want: Tensor) -> float:
    """The largest distance of an element from its float64 value, where eager's is finite."""
    found = (
        float(((v - e).abs().nan_to_num(0.0, 0.0, 0.0) * w.isfinite()).max())
        for v, e, w in pieces(values, exact, want)
        if v.numel()
    )
    return max(found, default=0.0)


def without_overflow(got: Tensor, want: Tensor, exact: Tensor, spread: Spread) -> tuple[Tensor, Tensor, Tensor]:
    """The compiled, eager's and the float64 value, with zeros where infinities in one of the first two are no fault.

    Eager alone left the range of its type on the way, as a product in float16 does that a fused kernel keeps in
    float32, and the compiled value is near the float64 value. Or one of the two overflowed by rounding: the float64
    value and the finite one are as near to the largest number of the type as rounding takes values, and at most half
    of it away.
    """
    if want.is_complex() or _same_finite(got, want):
        return got, want, exact
    largest = torch.finfo(want.dtype).max
    in_range = exact.abs() <= largest
    on_the_way = ~want.isfinite() & got.isfinite() & in_range
    allowed = allowed_difference(exact, want.dtype, magnitude(exact.masked_fill(~in_range, 0))) + 2 * spread.jumps
    is_right = on_the_way & ((got.to(exact.dtype) - exact).abs() <= allowed)

    infinite, finite = torch.where(got.isinf(), got, want), torch.where(got.isinf(), want, got).to(exact.dtype)
    noise = tolerance(want.dtype) * largest + (2 * spread.jumps).clamp(max=largest / 2)
    is_near = ((exact.abs() - largest).abs() <= noise) & (largest - finite.abs() <= noise)
    same_sign = (infinite.sign() == exact.sign()) & (infinite.sign() == finite.sign())
    overflow = (got.isinf() ^ want.isinf()) & ~on_the_way & is_near & same_sign
    excused = is_right | overflow
    return got.masked_fill(excused, 0), want.masked_fill(excused, 0), exact.masked_fill(excused, 0)


def _same_finite(got: Tensor, want: Tensor) -> bool:
    """Whether two values have NaN and the same infinities at the same places."""
    pairs = ((g, w, w.isfinite()) for g, w in pieces(got, want))
    return all(torch.equal(g.isfinite(), f) and same_values(g[~f], w[~f]) for g, w, f in pairs)


def _is_by_elements(got: Tensor, want: Tensor, exact: Tensor, spread: Spread, scale: float) -> bool:
    """Whether rounding explains each element.

    Either an element is about as far from its float64 value as elements of its size are in eager, or as those go when
    the inputs move in their last places, and not far for the size of numbers around; or it jumps far then, as a
    gradient does where the input of a relu is almost zero, and the compiled one lies within those jumps.
    """
    real = want.real.dtype
    largest = magnitude(want)
    furthest = _furthest(want, exact, want)
    # Under autocast eager itself is far from float64.
    limit = max(tolerance(real) * scale, min(2 * furthest, MOST_LOWERED * scale))
    limit = max(limit, WORSE_THAN_EAGER * spread.size)
    for g, w, e, jumps in pieces(got, want, exact, spread.jumps):
        g, w, finite = g.to(e.dtype), w.to(e.dtype), w.isfinite()
        own = (g - e).abs()
        noise = _largest_among_similar(torch.maximum(jumps, (w - e).abs()), w.abs(), g.abs())
        as_good_as_eager = (own <= WORSE_THAN_EAGER * noise) & (own <= limit)
        within_jumps = own <= allowed_difference(w, real, largest) + 2 * jumps
        if not (as_good_as_eager | within_jumps | ~finite).all():
            return False
    return True


def _largest_among_similar(errors: Tensor, sizes: Tensor, got_sizes: Tensor) -> Tensor:
    """For each element, the largest error among those that are not much larger than it is in either run.

    At least among an eighth of all, up to eight: an element that is almost zero by chance tells nothing by itself.
    """
    ordered, order = sizes.flatten().nan_to_num().sort()
    so_far = errors.flatten().nan_to_num()[order].cummax(0).values
    bounds = WORSE_THAN_EAGER * torch.maximum(sizes, got_sizes).flatten().nan_to_num()
    found = torch.searchsorted(ordered, bounds, right=True)
    return so_far[found.clamp(min=max(1, min(8, len(ordered) // 8))) - 1].view(errors.shape)
