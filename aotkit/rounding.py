"""What counts as equal: how far rounding may move a value, by its size and by how eager's rounding moves it."""

import functools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from aotkit.aot import pytree
from aotkit.aot.randomness import SameDraws
from aotkit.aot.stochastic import ResultTypes, StochasticArithmetic
from aotkit.copies import Outcome, Plan, Run, run_on_copies, same_random

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


def allowed_difference(want: Tensor, dtype: torch.dtype) -> Tensor:
    """For each element of a value that was computed in the real type `dtype`, the difference that rounding explains."""
    size = want.abs()
    largest = size.nan_to_num(0.0, 0.0, 0.0).amax() if size.numel() else size.new_tensor(0.0)
    share = min(tolerance(dtype), CANCELLED * torch.finfo(dtype).eps)
    return tolerance(dtype) * size + share * largest + 1e-34


class References:
    """Runs of the eager function in float64: as it is, and with rounding that differs at random.

    They are made when they are asked for, and None if they cannot be: when the function does not take float64, or
    draws other random numbers then.
    """

    def __init__(self, eager: Run, tensors: Sequence[Tensor], want: Outcome, plan: Plan) -> None:
        kinds = [t.dtype for t in tensors if t.is_floating_point()]
        self._dtype = kinds[0] if kinds else torch.get_default_dtype()
        self._eager = eager
        self._tensors = tensors
        self._want = want
        self._plan = plan

    @functools.cached_property
    def exact(self) -> Outcome | None:
        """What float64 gives."""
        return self._run(nullcontext())

    @functools.cached_property
    def nudged(self) -> Sequence[Outcome] | None:
        """What comes out when each rounded value moves in its last places."""
        recorder, found = ResultTypes(), []
        if self._run(recorder, widened=False) is None:
            return None
        for seed in range(NUDGES):
            if (run := self._run(StochasticArithmetic(recorder.types, _nudge, seed))) is None:
                return None
            run.forget_unchanged()
            found.append(run)
        return found

    @functools.cached_property
    def is_reproducible(self) -> bool:
        """Whether a second run gives the same: else what differs at random would pass for rounding."""
        again = self._run(nullcontext())
        if again is None or self.exact is None:
            return False
        runs = [(_numbers(run.outputs), _numbers(run.gradients)) for run in (again, self.exact)]
        return all(_are_close(*pair) for pair in zip(*runs, strict=True))

    def _run(self, arithmetic: AbstractContextManager[Any], widened: bool = True) -> Outcome | None:
        @contextmanager
        def run_so(copies: list[Tensor]) -> Iterator[Any]:
            draws = SameDraws(self._dtype) if self._want.draws and widened else nullcontext()
            with draws, arithmetic, self._eager(copies) as outputs:
                yield outputs

        before = self._plan.change

        def change(values: Tensor) -> Tensor:
            return in_float64(values if before is None else before(values))

        try:
            run = run_on_copies(run_so, self._tensors, replace(self._plan, change=change if widened else before))
        except Exception:  # then eager's verdict stands
            return None
        return run if same_random(run.random, self._want.random) else None


def _numbers(values: Any) -> list[Tensor]:
    """All tensors, without gradients and NaN."""
    tensors = [t.detach() for t in pytree.tree_leaves(values) if isinstance(t, Tensor)]
    return [(torch.view_as_real(t.resolve_conj()) if t.is_complex() else t).double().nan_to_num() for t in tensors]


def _are_close(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    """Whether float64 values are the same but for the order in which a GPU adds up."""
    largest = max((float(x.abs().max()) for x in a if x.numel()), default=0.0)
    return all(bool(((x - y).abs() <= TOLERANCE[torch.float64] * largest).all()) for x, y in zip(a, b, strict=True))


def in_float64(values: Tensor) -> Tensor:
    """The same values; floating-point and complex ones in the widest type."""
    if not (values.is_floating_point() or values.is_complex()):
        return values.clone()
    return values.to(torch.complex128 if values.is_complex() else torch.float64, copy=True)


def _nudge(dtype: torch.dtype) -> float:
    """The standard deviation of the relative amounts by which rounded values of a type are moved."""
    return (NUDGE_OF_HALVES if dtype in LESS_EXACT else NUDGE) * torch.finfo(dtype).eps


def is_less_exact(got: Tensor, want: Tensor, references: Sequence[Tensor]) -> bool:
    """Whether a compiled value is altogether farther from its float64 value than eager's is, beyond rounding.

    Args:
        references: the float64 value, and what it becomes when the inputs move in their last places.
    """
    exact, *nudged = references
    real = want.abs().dtype
    finite = want.isfinite() & got.isfinite() & exact.isfinite()
    if not finite.any():
        return False

    def size(values: Tensor) -> float:
        return float(values[finite].abs().square().mean().sqrt())

    eager = max(size(v.to(exact.dtype) - exact) for v in (want, *nudged))
    worse = LESS_EXACT.get(real, WORSE_THAN_EAGER)
    floor = FLOOR if nudged else FLOOR + FLOOR_OF_FEW / int(finite.sum()) ** 0.5
    floor *= torch.finfo(real).eps * size(exact)
    return bool(size(got.to(exact.dtype) - exact) > worse * eager + floor)


def is_rounding(got: Tensor, want: Tensor, exact: Tensor, nudged: Sequence[Tensor], largest: float) -> bool:
    """Whether rounding explains how a compiled value differs from eager's.

    Either an element is about as far from its float64 value as elements of its size are in eager, or as those go when
    the inputs move in their last places, and not far for the size of numbers around; or it jumps far then, as a
    gradient does where the input of a relu is almost zero, and the compiled one lies within those jumps.

    Args:
        largest: the largest value of this kind, outputs or gradients.
    """
    real = want.abs().dtype
    wide = want.to(exact.dtype)
    own, eager = (got.to(exact.dtype) - exact).abs(), (wide - exact).abs()
    # Under autocast eager itself is far from float64.
    limit = max(tolerance(real) * largest, min(2 * float(eager.nan_to_num().max()), MOST_LOWERED * largest))
    jumps = torch.stack([(v - exact).abs() for v in nudged]).amax(0)
    noise = _largest_among_similar(torch.maximum(jumps, eager), wide.abs(), got.to(exact.dtype).abs())
    as_good_as_eager = (own <= WORSE_THAN_EAGER * noise) & (own <= limit)
    within_jumps = own <= allowed_difference(wide, real) + 2 * jumps
    return bool((as_good_as_eager | within_jumps | ~want.isfinite()).all())


def _largest_among_similar(errors: Tensor, sizes: Tensor, got_sizes: Tensor) -> Tensor:
    """For each element, the largest error among those that are not much larger than it is in either run.

    At least among an eighth of all, up to eight: an element that is almost zero by chance tells nothing by itself.
    """
    ordered, order = sizes.flatten().nan_to_num().sort()
    so_far = errors.flatten().nan_to_num()[order].cummax(0).values
    bounds = WORSE_THAN_EAGER * torch.maximum(sizes, got_sizes).flatten().nan_to_num()
    found = torch.searchsorted(ordered, bounds, right=True)
    return so_far[found.clamp(min=max(1, min(8, len(ordered) // 8))) - 1].view(errors.shape)
