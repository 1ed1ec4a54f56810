"""What counts as equal: how far rounding may move a value, by its size and by how eager's rounding moves it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from aotkit.aot.randomness import SameDraws
from aotkit.copies import Outcome, run_on_copies, same_random

# Relative to each element. Fused arithmetic rounds less often than eager's, or in another order.
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
# An element that is small because larger ones cancel carries their rounding errors: so many units in the last place of
# the tensor's largest value. Sums of many numbers, and values that are little else than rounding errors, such as the
# gradient of a bias before a batch norm, exceed that; then runs in float64 decide.
CANCELLED = 8
# How many times the distance of eager, or of a nudged run, from float64 the compiled function may be away from it, and
# how much larger the elements may be among which that distance is looked for.
WORSE_THAN_EAGER = 10.0
# How often, and by how many units in their last place, inputs are moved to see how sensitive a value is. The units
# stand for the rounding of all intermediate values; the tolerance of float32 is about 800 of them, that of the half
# types a few, so those are moved less.
NUDGES = 16
NUDGE = 32

# The tolerance where eager works in a lower precision than the types of the values tell.
MOST_LOWERED = TOLERANCE[torch.bfloat16]

Run = Callable[[list[Tensor]], Any]


def tolerance(dtype: torch.dtype) -> float:
    """The relative tolerance for values of a real type."""
    return TOLERANCE.get(dtype, 0.2)


def allowed_difference(want: Tensor, dtype: torch.dtype) -> Tensor:
    """For each element of a value that was computed in the real type `dtype`, the difference that rounding explains."""
    size = want.abs()
    largest = size[size.isfinite()].amax() if size.isfinite().any() else size.new_tensor(0.0)
    share = min(tolerance(dtype), CANCELLED * torch.finfo(dtype).eps)
    return tolerance(dtype) * size + share * largest + 1e-34


class Excuses:
    """Runs of the eager function in float64, of its inputs and of inputs moved in their last places.

    Attributes:
        usable: whether they compute what eager computes; not when the function does not take float64, or draws other
            random numbers then.
    """

    def __init__(
        self,
        eager: Run,
        tensors: Sequence[Tensor],
        want: Outcome,
        generators: Sequence[Any],
        randomness: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.usable = False
        kinds = [t.dtype for t in tensors if t.is_floating_point()]

        def run(inputs: Sequence[Tensor]) -> Outcome:
            def same_draws(copies: list[Tensor]) -> Any:
                with randomness(), SameDraws(kinds[0] if kinds else torch.get_default_dtype()):
                    return eager(copies)

            return run_on_copies(same_draws if want.draws else eager, inputs, generators)

        try:
            self.exact = run(_in_float64(tensors))
            self.nudged = [run(_nudged(tensors, seed)) for seed in range(NUDGES)]
        except Exception:  # then eager's verdict stands
            return
        self.usable = same_random(self.exact.random, want.random)


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
    """For each element, the largest error among those that are not much larger than it is in either run."""
    ordered, order = sizes.flatten().nan_to_num().sort()
    so_far = errors.flatten().nan_to_num()[order].cummax(0).values
    bounds = WORSE_THAN_EAGER * torch.maximum(sizes, got_sizes).flatten().nan_to_num()
    return so_far[torch.searchsorted(ordered, bounds, right=True) - 1].view(errors.shape)


def _in_float64(
    tensors: Sequence[Tensor], nudge: Callable[[Tensor, torch.dtype], Tensor] | None = None
) -> list[Tensor]:
    """The inputs in float64. What is one tensor, or shares memory, still does.

    Args:
        nudge: moves values that had a floating type.

    Raises:
        NotImplementedError: tensors of different types share memory.
    """

    def widened(tensor: Tensor) -> Tensor:
        if tensor.is_complex():
            return tensor.to(torch.complex128)
        if not tensor.is_floating_point():
            return tensor
        return tensor.double() if nudge is None else nudge(tensor.double(), tensor.dtype)

    distinct = {id(t): t for t in tensors}
    groups: dict[int, list[Tensor]] = {}
    for t in distinct.values():
        groups.setdefault(t.untyped_storage()._cdata, []).append(t)
    wide: dict[int, Tensor] = {}
    for group in groups.values():
        if len({(t.dtype, t.is_conj(), t.is_neg()) for t in group}) > 1:
            raise NotImplementedError
        if len(group) == 1:
            wide[id(group[0])] = widened(group[0].detach())
        else:
            source = group[0].detach()
            size = source.untyped_storage().nbytes() // source.itemsize
            values = widened(source.as_strided((size,), (1,), 0))
            wide |= {id(t): values.as_strided(t.shape, t.stride(), t.storage_offset()) for t in group}
    return [wide[id(t)].requires_grad_(t.requires_grad) for t in tensors]


def _nudged(tensors: Sequence[Tensor], seed: int) -> list[Tensor]:
    """The inputs in float64, each number off by a few units in its last place."""
    generator = torch.Generator().manual_seed(seed)

    def nudge(values: Tensor, dtype: torch.dtype) -> Tensor:
        noise = torch.randn(values.shape, generator=generator, dtype=torch.float64).to(values.device)
        return values * (1 + min(NUDGE * torch.finfo(dtype).eps, tolerance(dtype) / 25) * noise)

    return _in_float64(tensors, nudge)
