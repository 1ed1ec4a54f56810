"""Runs of the eager function that tell what rounding does to it, as there is time and memory."""

import functools
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from aotkit.checking.distances import distance, size_of
from aotkit.checking.in_pieces import is_floating, same_values
from aotkit.checking.rounding import Spread, are_close, in_float64, nudge
from aotkit.checking.runs import Baseline, Outcome, run_on_copies, same_random
from aotkit.checking.stochastic import Exactness, ResultTypes, StochasticArithmetic
from aotkit.checking.unwritten import Filled
from aotkit.checking.widened import SameDraws, Widened
from aotkit.errors import is_out_of_memory
from aotkit.torch_private.dispatch import pytree

# How often rounded values are moved to see how sensitive a result is, and how often eager runs where its runs differ.
NUDGES, REPEATS = 16, 4
# Runs whose rounding differs are nearer to each other in float64, by this factor at least. Kernels that compute in
# float32 always are not: those are told by being as near as rounding is, or, where there is no float64 to tell how much
# of it there is, so many times farther at most.
FINER, AMPLIFIED = 0.01, 30.0

Values = dict[str, Tensor]


class References:
    """Runs of the eager function: as it is, in float64, and with rounding that differs at random.

    Only the values that are in doubt are kept of them.

    Args:
        baseline: the run in which they are. No more runs begin when its budget is used up.
        wanted: those values by name, as eager gave them.

    Attributes:
        is_wide: whether `exact` is of float64. It is eager's own where the function does not take that, or draws other
            random numbers then; rounding is then moved in the function's own types.
        nudges: how many runs with other rounding there were.
        unwritten: for each value the elements that depend on memory that the function never wrote, if there are any.
        varies: whether eager gave something else when it ran again.
    """

    def __init__(self, baseline: Baseline, wanted: Values) -> None:
        kinds = [t.dtype for t in baseline.tensors if t.is_floating_point()]
        self._dtype = kinds[0] if kinds else torch.get_default_dtype()
        self._names = baseline.names
        self._eager = baseline.eager
        self._tensors = baseline.tensors
        self._draws, self._random = baseline.want.draws, baseline.want.random
        self._plan = replace(baseline.plan, changed=baseline.want.changed, watched=False)
        self.wanted = wanted
        self.budget = baseline.budget
        self._types = ResultTypes()
        self._exactness: Exactness = []
        self._again: Values | None = None  # a second run in float64, or in the function's own types
        self.is_wide = True
        self.nudges = 0
        self.unwritten: Values = {}
        self.varies = False
        self._apart: dict[str, float] = {}  # two runs in the function's own types
        self._spreads: dict[str, Spread] = {}

    @functools.cached_property
    def exact(self) -> Values | None:
        """What float64 gives; None if there is no time."""
        if self.budget.is_used_up:
            return None
        if (found := self._run()) is None:
            self.is_wide = False
            return {what: in_float64(value) for what, value in self.wanted.items()}
        return found

    def repeat(self, names: Collection[str]) -> None:
        """Run eager again, as it is: see whether it varies, and what depends on memory that it never wrote.

        Only values of these names are wanted from now on.
        """
        self.wanted = {what: value for what, value in self.wanted.items() if what in names}
        if self.exact is None:
            return
        self.exact = {what: self.exact[what] for what in self.wanted}
        fill = Filled(float("nan"), 0)
        if self.budget.is_used_up or (first := self._run(fill, self._types, wide=False)) is None:
            return
        if fill.took and (other := self._run(Filled(1.0, 1), wide=False)) is not None:
            marks = {what: _unlike(first[what], other[what]) for what in self.wanted}
            self.unwritten = {what: mark for what, mark in marks.items() if mark.any()}
            first = self.written(first)
            self.wanted, self.exact = self.written(self.wanted), self.written(self.exact)
        self._spreads = {what: Spread.around(exact) for what, exact in self.exact.items()}
        self.varies = not all(same_values(first[what], value) for what, value in self.wanted.items())
        if self.varies:
            self._again = self._run() if self.is_wide else first
            self._apart = {w: distance(first[w], in_float64(v), v) for w, v in self.wanted.items() if is_floating(v)}
            self._add(first)

    def written(self, values: Values) -> Values:
        """The same, with zeros in place of what was never written."""
        return {
            what: value.masked_fill(self.unwritten[what], 0) if what in self.unwritten else value
            for what, value in values.items()
        }

    def nudged(self) -> Iterator[None]:
        """Add to the spreads, run by run, what rounding that differs does; ends early if time does.

        Stops whenever there are twice as many runs, and at the end: each look at the spreads takes time, too.
        """
        if not self._spreads:
            return
        yield
        for seed in range(NUDGES):
            if self.budget.is_used_up:
                break
            arithmetic = StochasticArithmetic(self._types.types, nudge, seed, self._exactness)
            if (moved := self._run(arithmetic, wide=self.is_wide)) is None:
                break
            self.nudges += 1
            self._add(moved)
            if self.varies and 0 < seed < REPEATS and (again := self._run(wide=False)) is not None:
                self._add(again)
            if self.nudges.bit_count() == 1:
                yield
        if self.nudges.bit_count() > 1:
            yield

    def _add(self, values: Values) -> None:
        assert self.exact is not None
        for what, value in self.written(values).items():
            self._spreads[what].add(value, self.exact[what], self.wanted[what])

    def spread(self, what: str) -> Spread:
        """How far rounding, as it is and as it was moved, takes a value."""
        return self._spreads[what]

    def is_steady(self, what: str, largest: float) -> bool:
        """Whether eager's runs differ by rounding at most: not where they differ as much in float64.

        Args:
            largest: the magnitude of a number whose rounding may be all that there is of the value, as of a gradient
                that is zero: that of attention's key bias is other noise each time.
        """
        if not self.varies:
            return True
        if self.exact is None or self._again is None:
            return False
        exact, again, want = self.exact[what], self.written(self._again)[what], self.wanted[what]
        if are_close(again, exact) or not is_floating(want):
            return are_close(again, exact)
        size, far = size_of(exact, want), distance(again, exact, want)
        rounding = nudge(want.real.dtype)
        # In float64 noise has no size: that of the rounding of the largest number is what it is small beside.
        size = max(size, FINER * largest) if self.is_wide else max(AMPLIFIED * size, largest)
        return far <= FINER * self._apart[what] or far <= rounding * size

    def _run(self, *modes: Any, wide: bool = True) -> Values | None:
        """Values of a run under these modes; None if eager raises then, or draws otherwise."""

        @contextmanager
        def run_so(copies: list[Tensor]) -> Iterator[Any]:
            same_draws = [SameDraws(self._dtype)] if wide and self._draws else []
            with ExitStack() as stack:  # the last one sees an operator first
                for mode in (*same_draws, *modes, *([Widened()] if wide else ())):
                    stack.enter_context(mode)
                yield stack.enter_context(self._eager(copies))

        before = self._plan.change

        def change(values: Tensor) -> Tensor:
            return in_float64(values if before is None else before(values))

        try:
            run = run_on_copies(run_so, self._tensors, replace(self._plan, change=change if wide else before))
        except Exception as e:  # then there is no such reference
            if is_out_of_memory(e):  # of eager in its own types alone, too little can be told
                self.budget.use_up()
            return None
        found = values_of(self._names, run)
        alike = all(w in found and found[w].shape == value.shape for w, value in self.wanted.items())
        return {w: found[w] for w in self.wanted} if alike and same_random(run.random, self._random) else None


def _unlike(filled: Tensor, other: Tensor) -> Tensor:
    """The elements that depend on what new memory was filled with: NaN the first time, if they are floating point."""
    if is_floating(filled):
        return filled.isnan() & ~other.isnan()
    return filled != other


def values_of(names: Sequence[str], outcome: Outcome) -> Values:
    """Outputs, gradients and mutated inputs by the names that comparisons have."""
    found = {f"output {i}": v for i, v in enumerate(pytree.tree_leaves(outcome.outputs))}
    found |= {f"gradient of {n}": v for n, v in zip(names, outcome.gradients or (), strict=False)}
    found |= {f"input {n} after the call": v for n, v in zip(names, outcome.inputs, strict=True)}
    return {what: v.detach() for what, v in found.items() if isinstance(v, Tensor) and not v.is_meta}
