"""Judge one run: compare it with eager's, then withdraw the complaints that rounding explains."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from aotkit.checking.budget import Budget
from aotkit.checking.comparison import AGAIN, Comparison, compare, compare_elements
from aotkit.checking.in_pieces import magnitude
from aotkit.checking.references import NUDGES, References, Values
from aotkit.checking.rounding import (
    WORSE_THAN_EAGER,
    EagerValue,
    Spread,
    distance,
    is_floating,
    is_less_exact,
    is_rounding,
    nudge,
    size_of,
    without_overflow,
)
from aotkit.checking.runs import Outcome, Plan, Run
from aotkit.torch_private.dispatch import pytree

# Of its size, how far off a value is that is wrong for certain though there was no time for all runs: a relu that has
# switched in none of a few runs may yet have done so by rounding.
GROSS = 0.5
NO_MEANS = "there was no time, or no memory, to find out"


@dataclass
class Doubt:
    """A value that differs from eager's, perhaps by rounding.

    Attributes:
        name: of eager's value.
        got: the compiled one.
        eager: what it is compared with.
    """

    comparison: Comparison
    name: str
    got: Tensor
    eager: EagerValue


@dataclass
class Judgement:
    """What a comparison found, and what is still in doubt. Of the values that were compared, it has only those.

    Attributes:
        references: runs that settle it, if it can be settled.
        varies: whether eager itself gave something else when it ran again to settle it.
    """

    comparisons: list[Comparison]
    doubts: list[Doubt] = field(default_factory=list)
    references: References | None = None
    varies: bool = False

    def settle(self) -> list[Comparison]:
        """Decide; frees what was in doubt."""
        doubts, references, self.doubts, self.references = self.doubts, self.references, [], None
        if references is None:
            return self.comparisons
        if (exact := references.exact) is not None and references.is_wide:
            for doubt in doubts:
                _complain_of_exactness(doubt, exact[doubt.name])
        if doubts := [doubt for doubt in doubts if doubt.comparison.problem]:
            references.keep({doubt.name for doubt in doubts})
            references.repeat()
            self.varies = references.varies
            _leave_out_unwritten(doubts, references)
            _excuse_rounding([doubt for doubt in doubts if doubt.comparison.problem], references)
        return self.comparisons


def judge(
    names: Sequence[str],
    eager: Run,
    tensors: Sequence[Tensor],
    plan: Plan,
    got: Outcome,
    want: Outcome,
    exactness: bool,
    layouts: bool,
    budget: Budget,
) -> Judgement:
    """Compare a run with eager's.

    Args:
        names: one for each tensor.
        tensors: what both ran on copies of.
        plan: how eager ran.
        exactness: also complain where eager is far more exact.
        layouts: whether outputs have to have eager's strides.
        budget: for runs that settle what is in doubt.
    """
    comparisons = compare(names, got, want, layouts)
    # Only what differs by its elements can be rounding; nothing excuses the rest.
    if any(c.problem and c.values is None for c in comparisons):
        return Judgement(comparisons)
    found = [c for c in comparisons if c.problem or (exactness and c.error)]
    again = zip(names, got.again or (), strict=False)
    values = values_of(names, got) | {f"gradient of {n}{AGAIN}": g.detach() for n, g in again if g is not None}
    return doubted(found, values, comparisons, eager, tensors, plan, want, names, budget)


def doubted(
    found: Sequence[Comparison],
    got: Values,
    comparisons: list[Comparison],
    eager: Run,
    tensors: Sequence[Tensor],
    plan: Plan,
    want: Outcome,
    names: Sequence[str],
    budget: Budget,
) -> Judgement:
    """A judgement in which these comparisons are in doubt.

    Args:
        got: the compiled values, by what the comparisons are of.
        comparisons: all of them.
    """
    eagers = values_of(names, want) if found else {}
    largest = functools.cache(functools.partial(_largest, eagers))
    doubts = [
        Doubt(c, c.values, got[c.what], EagerValue(eagers[c.values], largest(_kind(c.values))))
        for c in found
        if c.values in eagers and c.what in got
    ]
    if not doubts:
        return Judgement(comparisons)
    wanted = {doubt.name: doubt.eager.value for doubt in doubts}
    references = References(eager, tensors, want, plan, wanted, functools.partial(values_of, names), budget)
    return Judgement(comparisons, doubts, references)


def _complain_of_exactness(doubt: Doubt, exact: Tensor) -> None:
    c = doubt.comparison
    if c.problem is None and is_less_exact(doubt.got, doubt.eager, exact):
        c.problem = "is far less exact than eager's: the root mean square of its distance from float64 is larger"


def _leave_out_unwritten(doubts: Sequence[Doubt], references: References) -> None:
    """Compare again without what depends on memory that the function never wrote."""
    for doubt in doubts:
        if (mark := references.unwritten.get(doubt.name)) is None:
            continue
        c, got, want = doubt.comparison, doubt.got.masked_fill(mark, 0), doubt.eager.value.masked_fill(mark, 0)
        doubt.got, doubt.eager = got, EagerValue(want, magnitude(want))
        again = compare_elements(c.what, got, want)
        c.error, c.allowed, c.problem = again.error, again.allowed, again.problem


def _excuse_rounding(doubts: Sequence[Doubt], references: References) -> None:
    """Withdraw complaints as soon as the runs so far explain them; more runs would explain more."""
    for _ in references.nudged():
        if references.nudges.bit_count() > 1:  # each look takes time, too
            continue
        doubts = [doubt for doubt in doubts if not _excused(doubt, references, references.spread)]
        if not doubts:
            return
    if references.nudges.bit_count() > 1:
        doubts = [doubt for doubt in doubts if not _excused(doubt, references, references.spread)]
    for doubt in doubts:
        c = doubt.comparison
        if references.nudges < NUDGES and references.budget.is_used_up:
            fewer = NUDGES / max(references.nudges, 1)
            larger = functools.partial(_scaled, references, fewer)
            if not _is_gross(doubt, references) or (references.nudges and _excused(doubt, references, larger)):
                c.problem, c.undecided = (
                    None,
                    f"{c.problem}, perhaps by rounding: {NO_MEANS}",
                )
                continue
        if not _is_steady(doubt, references):
            c.problem = f"{c.problem}; eager itself gives something else each time"


def _is_gross(doubt: Doubt, references: References) -> bool:
    """Whether a value is as wrong as one with a missing term.

    Few runs suffice to tell; eager's alone do, if it is near its float64 value.
    """
    want = doubt.eager.value
    if references.exact is None or not is_floating(want):
        return False
    exact = references.exact[doubt.name]
    spread = references.spread(doubt.name) if references.nudges else Spread.around(exact)
    got, want, exact = without_overflow(doubt.got, want, exact, spread)
    off = distance(got, exact, want)
    if off <= GROSS * size_of(exact, want):
        return False
    # What is smaller than the rounding of the largest of its kind, eager may have by chance, as a zero in float16.
    noise = nudge(want.real.dtype if want.is_complex() else want.dtype) * doubt.eager.largest
    is_near = WORSE_THAN_EAGER * max(distance(want, exact, want), noise) < off
    return references.nudges > 0 or (references.is_wide and is_near)


def _scaled(references: References, factor: float, name: str) -> Spread:
    return references.spread(name).scaled(factor)


def _excused(doubt: Doubt, references: References, spread_of: Callable[[str], Spread]) -> bool:
    """Whether a complaint was withdrawn."""
    c, name = doubt.comparison, doubt.name
    if references.exact is None or not _is_steady(doubt, references):
        return False
    exact, spread = references.exact[name], spread_of(name)
    if is_rounding(doubt.got, doubt.eager, exact, spread):
        if not c.error:  # infinities differ, so that no elements were compared
            got, want, _ = without_overflow(doubt.got, doubt.eager.value, exact, spread)
            again = compare_elements(c.what, got, want)
            c.error, c.allowed = again.error, again.allowed
            c.beyond = int((doubt.got.isfinite() & ~doubt.eager.value.isfinite()).sum())
        c.problem, c.allowed = None, max(c.allowed, c.error)
    return c.problem is None


def _is_steady(doubt: Doubt, references: References) -> bool:
    is_gradient = _kind(doubt.name) == "gradient"
    return references.is_steady(doubt.name, doubt.eager.largest if is_gradient else 0.0)


def values_of(names: Sequence[str], outcome: Outcome) -> Values:
    """Outputs, gradients and mutated inputs by the names that comparisons have."""
    found = {f"output {i}": v for i, v in enumerate(pytree.tree_leaves(outcome.outputs))}
    found |= {f"gradient of {n}": v for n, v in zip(names, outcome.gradients or (), strict=False)}
    found |= {f"input {n} after the call": v for n, v in zip(names, outcome.inputs, strict=True)}
    return {what: v.detach() for what, v in found.items() if isinstance(v, Tensor) and not v.is_meta}


def _kind(what: str) -> str:
    return what.partition(" ")[0]


def _largest(values: Values, kind: str) -> float:
    """The magnitude of the largest value of a kind: outputs, gradients or inputs."""
    alike = [v for what, v in values.items() if _kind(what) == kind]
    return max((magnitude(v) for v in alike if v.is_floating_point() or v.is_complex()), default=0.0)
