"""What counts as equal: how far rounding may move a value, by its size and by how eager's rounding moves it."""

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from aotkit.aot.randomness import SameDraws
from aotkit.aot.stochastic import ResultTypes, StochasticArithmetic
from aotkit.copies import Outcome, Plan, Run, run_on_copies, same_random
from aotkit.pieces import magnitude, pieces

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
# How often, and by how many units in their last place, rounded values are moved to see how sensitive a result is. The
# tolerance of float32 is about 800 units, that of the half types a few, so those are moved less: as rounding does.
NUDGES = 16
NUDGE, NUDGE_OF_HALVES = 8.0, 0.3

# The tolerance where eager works in a lower precision than the types of the values tell.
MOST_LOWERED = TOLERANCE[torch.bfloat16]


def tolerance(dtype: torch.dtype) -> float:
    """The relative tolerance for values of a real type."""
    return TOLERANCE.get(dtype, 0.2)


def allowed_difference(want: Tensor, dtype: torch.dtype, largest: float) -> Tensor:
    """For each element of a value that was computed in the real type `dtype`, the difference that rounding explains.

    Args:
        largest: the magnitude of the tensor's largest element.
    """
    share = min(tolerance(dtype), CANCELLED * torch.finfo(dtype).eps)
    return tolerance(dtype) * want.abs() + (share * largest + 1e-34)


Values = dict[str, Tensor]


@dataclass(frozen=True)
class EagerValue:
    """A value as eager computes it.

    Attributes:
        largest: the magnitude of the largest one of its kind, outputs or gradients.
    """

    value: Tensor
    largest: float


@dataclass
class Spread:
    """How far a value goes when what is rounded on the way to it moves in its last places.

    Attributes:
        jumps: for each element, the largest distance from its float64 value.
        size: the largest root mean square of these distances.
    """

    jumps: Tensor
    size: float = 0.0

    def add(self, moved: Tensor, exact: Tensor, want: Tensor) -> None:
        """One more run."""
        for jump, m, e in pieces(self.jumps, moved, exact):
            jump.copy_(torch.maximum(jump, (m - e).abs()))
        self.size = max(self.size, distance(moved, exact, want))


class References:
    """Runs of the eager function in float64: as it is, and with rounding that differs at random.

    They are made when they are asked for, and None if they cannot be: when the function does not take float64, or
    draws other random numbers then. Only the values that are in doubt are kept of them.

    Args:
        wanted: those values by name.
        values_of: from an outcome to all its values by name.
    """

    def __init__(
        self,
        eager: Run,
        tensors: Sequence[Tensor],
        want: Outcome,
        plan: Plan,
        wanted: dict[str, EagerValue],
        values_of: Callable[[Outcome], Values],
    ) -> None:
        kinds = [t.dtype for t in tensors if t.is_floating_point()]
        self._dtype = kinds[0] if kinds else torch.get_default_dtype()
        self._eager = eager
        self._tensors = tensors
        self._draws, self._random = want.draws, want.random
        self._plan = replace(plan, changed=want.changed)
        self._wanted = wanted
        self._values_of = values_of

    @functools.cached_property
    def exact(self) -> Values | None:
        """What float64 gives."""
        return self._run(nullcontext())

    def forget_all_but(self, names: Collection[str]) -> None:
        """Free what is no longer wanted."""
        self._wanted = {what: known for what, known in self._wanted.items() if what in names}
        if self.exact is not None:
            self.exact = {what: self.exact[what] for what in self._wanted}

    @functools.cached_property
    def spreads(self) -> dict[str, Spread] | None:
        """How far the values go when each rounded value moves in its last places."""
        recorder = ResultTypes()
        if self.exact is None or self._run(recorder, widened=False) is None:
            return None
        found = {what: Spread(torch.zeros_like(exact.abs())) for what, exact in self.exact.items()}
        for seed in range(NUDGES):
            if (moved := self._run(StochasticArithmetic(recorder.types, _nudge, seed))) is None:
                return None
            for what, spread in found.items():
                spread.add(moved[what], self.exact[what], self._wanted[what].value)
        return found

    @functools.cached_property
    def is_reproducible(self) -> bool:
        """Whether a second run gives the same: else what differs at random would pass for rounding."""
        again = self._run(nullcontext())
        if again is None or self.exact is None:
            return False
        return all(_are_close(again[what], exact, self._wanted[what].largest) for what, exact in self.exact.items())

    def _run(self, arithmetic: AbstractContextManager[Any], widened: bool = True) -> Values | None:
        @contextmanager
        def run_so(copies: list[Tensor]) -> Iterator[Any]:
            draws = SameDraws(self._dtype) if self._draws and widened else nullcontext()
            with draws, arithmetic, self._eager(copies) as outputs:
                yield outputs

        before = self._plan.change

        def change(values: Tensor) -> Tensor:
            return in_float64(values if before is None else before(values))

        try:
            run = run_on_copies(run_so, self._tensors, replace(self._plan, change=change if widened else before))
        except Exception:  # then eager's verdict stands
            return None
        found = self._values_of(run)
        alike = all(w in found and found[w].shape == known.value.shape for w, known in self._wanted.items())
        return {w: found[w] for w in self._wanted} if alike and same_random(run.random, self._random) else None


def _are_close(a: Tensor, b: Tensor, largest: float) -> bool:
    """Whether float64 values are the same but for the order in which a GPU adds up."""
    limit = TOLERANCE[torch.float64] * largest
    return all(bool(((x - y).abs().nan_to_num() <= limit).all()) for x, y in pieces(a, b))


def in_float64(values: Tensor) -> Tensor:
    """The same values; floating-point and complex ones in the widest type."""
    if not (values.is_floating_point() or values.is_complex()):
        return values.clone()
    return values.to(torch.complex128 if values.is_complex() else torch.float64, copy=True)


def _nudge(dtype: torch.dtype) -> float:
    """The standard deviation of the relative amounts by which rounded values of a type are moved."""
    return (NUDGE_OF_HALVES if dtype in LESS_EXACT else NUDGE) * torch.finfo(dtype).eps


def distance(values: Tensor, exact: Tensor, want: Tensor) -> float:
    """The root mean square of the distance from float64 values, where these and eager's are finite."""
    total, count = 0.0, 0
    for v, e, w in pieces(values, exact, want):
        finite = w.isfinite() & e.isfinite()
        total += float((v[finite].to(e.dtype) - e[finite]).abs().square().sum())
        count += int(finite.sum())
    return float((total / count) ** 0.5) if count else 0.0


def is_less_exact(got: Tensor, eager: EagerValue, exact: Tensor, spread: Spread | None = None) -> bool:
    """Whether a compiled value is altogether farther from its float64 value than eager's is, beyond rounding."""
    want = eager.value
    if not (count := sum(int((w.isfinite() & e.isfinite()).sum()) for w, e in pieces(want, exact))):
        return False
    real = want.real.dtype if want.is_complex() else want.dtype
    own = max(distance(want, exact, want), spread.size if spread else 0.0)
    worse = LESS_EXACT.get(real, WORSE_THAN_EAGER)
    floor = FLOOR if spread else FLOOR + FLOOR_OF_FEW / count**0.5
    floor *= torch.finfo(real).eps * distance(exact.new_zeros(()).expand_as(exact), exact, want)
    return bool(distance(got, exact, want) > worse * own + floor)


def is_rounding(got: Tensor, eager: EagerValue, exact: Tensor, spread: Spread) -> bool:
    """Whether rounding explains how a compiled value differs from eager's.

    Either an element is about as far from its float64 value as elements of its size are in eager, or as those go when
    the inputs move in their last places, and not far for the size of numbers around; or it jumps far then, as a
    gradient does where the input of a relu is almost zero, and the compiled one lies within those jumps.
    """
    want = eager.value
    real = want.real.dtype if want.is_complex() else want.dtype
    largest = magnitude(want)
    furthest = max(float((w.to(e.dtype) - e).abs().nan_to_num().max()) for w, e in pieces(want, exact))
    # Under autocast eager itself is far from float64.
    limit = max(tolerance(real) * eager.largest, min(2 * furthest, MOST_LOWERED * eager.largest))
    if distance(exact.new_zeros(()).expand_as(exact), exact, want) <= spread.size:  # the numbers around are noise, too
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
