"""What counts as equal: how far rounding may move a value, by its size and by how eager's rounding moves it."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from aotkit.checking.distances import Compared, Sample, sample_of
from aotkit.checking.in_pieces import blocks, is_floating, magnitude, pieces, same_values
from aotkit.checking.similar import are_near_as_similar

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
    return want.abs().mul_(tolerance(dtype)).add_(share * largest + 1e-34)


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
        return cls(torch.zeros((), dtype=torch.float64, device=exact.device).expand(exact.shape))

    @property
    def size(self) -> float:
        """The largest root mean square of the distances."""
        return max((sample.distance for sample in self.samples), default=0.0)

    def add(self, moved: Tensor, exact: Tensor, want: Tensor) -> None:
        """One more run."""
        self.jumps = self.jumps.contiguous()  # that of no run has no memory of its own
        for piece in pieces(self.jumps, moved, exact):
            for jump, m, e in blocks(*piece):
                changed = (m - e).abs().nan_to_num(0.0, 0.0, 0.0) if is_floating(e) else (m != e).to(jump)
                torch.maximum(jump, changed, out=jump)
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


def is_less_exact(compared: Compared, spread: Spread | None = None) -> bool:
    """Whether a compiled value is altogether farther from its float64 value than eager's is, beyond rounding."""
    if not is_floating(compared.want) or not compared.of_eager.count:
        return False
    real, eager = compared.want.real.dtype, compared.of_eager
    own = max(eager.sample.distance, spread.size if spread else 0.0)
    worse = LESS_EXACT.get(real, WORSE_THAN_EAGER)
    floor = FLOOR if spread else FLOOR + FLOOR_OF_FEW / eager.count**0.5
    floor *= torch.finfo(real).eps * eager.size
    return compared.of_compiled.sample.distance > worse * own + floor


def is_rounding(compared: Compared, spread: Spread, scale: float) -> bool:
    """Whether rounding explains how a compiled value differs from eager's.

    `scale` is the magnitude of the largest value of its kind, outputs or gradients, in eager.
    """
    if not is_floating(compared.want):
        pairs = pieces(compared.got, compared.want, compared.exact, spread.jumps)
        return all(bool(((g == w) | (w != e) | (jumps > 0)).all()) for g, w, e, jumps in pairs)
    compared = without_overflow(compared, spread)
    if not _same_finite(compared) or is_less_exact(compared, spread):
        return False
    return _is_by_elements(compared, spread, scale) or _is_as_a_whole(compared, spread)


def _is_as_a_whole(compared: Compared, spread: Spread) -> bool:
    """Whether a value that rounding changes by much is a value as others that rounding gives.

    Its elements are then anybody's guess, but not how far it is from its float64 value altogether, nor the furthest
    of them, nor how much of that value is in it: a missing term or another sign shows there.
    """
    eager, found = compared.of_eager, compared.of_compiled
    if spread.size < CHAOTIC * eager.size:
        return False
    others = [*spread.samples, eager.sample]
    furthest = max(eager.furthest, magnitude(spread.jumps))
    return (
        found.sample.distance <= FARTHER * max(other.distance for other in others)
        and abs(found.sample.share - 1) <= FARTHER * max(abs(other.share - 1) for other in others)
        and found.furthest <= FARTHER * furthest
    )


def without_overflow(compared: Compared, spread: Spread) -> Compared:
    """The values, with zeros where infinities in the compiled or in eager's are no fault.

    Eager alone left the range of its type on the way, as a product in float16 does that a fused kernel keeps in
    float32, and the compiled value is near the float64 value. Or one of the two overflowed by rounding: the float64
    value and the finite one are as near to the largest number of the type as rounding takes values, and at most half
    of it away.
    """
    got, want, exact = compared.got, compared.want, compared.exact
    if want.is_complex() or _same_finite(compared):
        return compared
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
    return Compared(*(values.masked_fill(excused, 0) for values in (got, want, exact)))


def _same_finite(compared: Compared) -> bool:
    """Whether the compiled value and eager's have NaN and the same infinities at the same places."""
    if compared.of_eager.finite:
        return True
    pairs = ((g, w, w.isfinite()) for g, w in pieces(compared.got, compared.want))
    return all(torch.equal(g.isfinite(), f) and same_values(g[~f], w[~f]) for g, w, f in pairs)


def _is_by_elements(compared: Compared, spread: Spread, scale: float) -> bool:
    """Whether rounding explains each element.

    Either an element is about as far from its float64 value as elements of its size are in eager, or as those go when
    the inputs move in their last places, and not far for the size of numbers around; or it jumps far then, as a
    gradient does where the input of a relu is almost zero, and the compiled one lies within those jumps.
    """
    real = compared.want.real.dtype
    # Under autocast eager itself is far from float64.
    limit = max(tolerance(real) * scale, min(2 * compared.of_eager.furthest, MOST_LOWERED * scale))
    limit = max(limit, WORSE_THAN_EAGER * spread.size)
    parts = pieces(compared.got, compared.want, compared.exact, spread.jumps)
    return all(_is_explained(part, real, compared.largest, limit) for part in parts)


# The compiled value, eager's, the float64 value and the jumps.
Part = tuple[Tensor, ...]


def _is_explained(part: Part, real: torch.dtype, largest: float, limit: float) -> bool:
    """Whether rounding explains each element of a piece."""
    found, start = [], 0
    for block in blocks(*part):
        excused = _is_plainly_explained(block, real, largest, limit)
        if int(torch.count_nonzero(excused)) < len(excused):
            found.append((~excused).nonzero().flatten() + start)
        start += len(excused)
    if not found:
        return True
    g, w, e, jumps = (values[torch.cat(found)] for values in part)
    g, w = g.to(e.dtype), w.to(e.dtype)
    own = (g - e).abs()
    within_jumps = own <= allowed_difference(w, real, largest) + 2 * jumps
    rest = ~within_jumps & w.isfinite()
    own, sizes = own[rest], torch.maximum(w.abs(), g.abs())[rest].nan_to_num()
    if not (own <= limit).all():
        return False
    bounds = WORSE_THAN_EAGER * sizes
    return not len(own) or are_near_as_similar(own, bounds, lambda: map(_noise, blocks(*part)), WORSE_THAN_EAGER)


def _is_plainly_explained(part: Part, real: torch.dtype, largest: float, limit: float) -> Tensor:
    """Whether each element lies within its jumps, or is about as far from its float64 value as it is itself in eager.

    Of others, and where something is not finite, more has to be known.
    """
    g, w, e, jumps = part
    own = (g.to(e.dtype) - e).abs()
    w = w.to(e.dtype)
    as_eager = torch.maximum(jumps, (w - e).abs()).mul_(WORSE_THAN_EAGER).clamp_(max=limit)
    within_jumps = allowed_difference(w, real, largest).add_(jumps, alpha=2)
    return own <= torch.maximum(as_eager, within_jumps)


def _noise(part: Part) -> tuple[Tensor, Tensor]:
    """How far each element goes by rounding, and its size in eager."""
    _, w, e, jumps = part
    w = w.to(e.dtype)
    return torch.maximum(jumps, (w - e).abs()).nan_to_num(), w.abs().nan_to_num()
