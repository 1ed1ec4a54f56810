"""Judge one run: compare it with eager's, then withdraw the complaints that rounding explains."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from aotkit.checking.comparison import AGAIN, Comparison, compare, compare_elements
from aotkit.checking.distances import Compared
from aotkit.checking.in_pieces import is_floating, magnitude
from aotkit.checking.references import NUDGES, References, Values, values_of
from aotkit.checking.rounding import (
    WORSE_THAN_EAGER,
    Spread,
    is_less_exact,
    is_rounding,
    nudge,
    without_overflow,
)
from aotkit.checking.runs import Baseline, Outcome

# Of its size, how far off a value is that is wrong for certain though there was no time for all runs: a relu that has
# switched in none of a few runs may yet have done so by rounding.
GROSS = 0.5
NO_MEANS = "there was no time, or no memory, to find out"


@dataclass
class Doubt:
    """A compiled value that differs from eager's, which has this name, perhaps by rounding.

    Attributes:
        scale: the magnitude of the largest value of its kind, outputs or gradients, in eager.
    """

    comparison: Comparison
    name: str
    got: Tensor
    want: Tensor
    scale: float
    _compared: Compared | None = field(default=None, init=False)

    def beside(self, exact: Tensor) -> Compared:
        """What differs, with the float64 value; again the same while its three values are."""
        last = self._compared
        if last is None or last.got is not self.got or last.want is not self.want or last.exact is not exact:
            last = self._compared = Compared(self.got, self.want, exact)
        return last


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
            references.repeat({doubt.name for doubt in doubts})
            self.varies = references.varies
            _leave_out_unwritten(doubts, references)
            _excuse_rounding([doubt for doubt in doubts if doubt.comparison.problem], references)
        return self.comparisons


def judge(baseline: Baseline, got: Outcome, exactness: bool) -> Judgement:
    """Compare a run with eager's; on demand, complain also where eager is far more exact."""
    comparisons = compare(baseline, got)
    # Only what differs by its elements can be rounding; nothing excuses the rest.
    if any(c.problem and c.values is None for c in comparisons):
        return Judgement(comparisons)
    again = zip(baseline.names, got.again or (), strict=False)
    values = values_of(baseline.names, got) | {f"gradient of {n}{AGAIN}": g.detach() for n, g in again if g is not None}
    return doubted(baseline, comparisons, values, exactness)


def doubted(baseline: Baseline, comparisons: list[Comparison], got: Values, exactness: bool = False) -> Judgement:
    """A judgement in which all complaints are in doubt that rounding may explain.

    Args:
        got: the compiled values, by what the comparisons are of.
    """
    found = [c for c in comparisons if c.problem or (exactness and c.error)]
    eagers = values_of(baseline.names, baseline.want) if found else {}
    largest = functools.cache(functools.partial(_largest, eagers))
    doubts = [
        Doubt(c, c.values, _in_order(got[c.what]), _in_order(eagers[c.values]), largest(_kind(c.values)))
        for c in found
        if c.values in eagers and c.what in got
    ]
    if not doubts:
        return Judgement(comparisons)
    return Judgement(comparisons, doubts, References(baseline, {doubt.name: doubt.want for doubt in doubts}))


def _in_order(values: Tensor) -> Tensor:
    """The same; where memory is no scarce thing in order, so that not each look at them has to copy."""
    return values.contiguous() if values.is_cpu else values


def _complain_of_exactness(doubt: Doubt, exact: Tensor) -> None:
    c = doubt.comparison
    if c.problem is None and is_less_exact(doubt.beside(exact)):
        c.problem = "is far less exact than eager's: the root mean square of its distance from float64 is larger"


def _leave_out_unwritten(doubts: Sequence[Doubt], references: References) -> None:
    """Compare again without what depends on memory that the function never wrote."""
    for doubt in doubts:
        if (mark := references.unwritten.get(doubt.name)) is None:
            continue
        doubt.got, doubt.want = doubt.got.masked_fill(mark, 0), doubt.want.masked_fill(mark, 0)
        doubt.scale = magnitude(doubt.want)
        c = doubt.comparison
        again = compare_elements(c.what, doubt.got, doubt.want)
        c.error, c.allowed, c.problem = again.error, again.allowed, again.problem


def _excuse_rounding(doubts: Sequence[Doubt], references: References) -> None:
    """Withdraw complaints as soon as the runs so far explain them; more runs would explain more."""
    for _ in references.nudged():
        doubts = [doubt for doubt in doubts if not _excused(doubt, references)]
        if not doubts:
            return
    for doubt in doubts:
        c = doubt.comparison
        if references.nudges < NUDGES and references.budget.is_used_up:
            fewer = NUDGES / max(references.nudges, 1)
            if not _is_gross(doubt, references) or (references.nudges and _excused(doubt, references, fewer)):
                c.problem, c.undecided = None, f"{c.problem}, perhaps by rounding: {NO_MEANS}"
                continue
        if not _is_steady(doubt, references):
            c.problem = f"{c.problem}; eager itself gives something else each time"


def _is_gross(doubt: Doubt, references: References) -> bool:
    """Whether a value is as wrong as one with a missing term.

    Few runs suffice to tell; eager's alone do, if it is near its float64 value.
    """
    want = doubt.want
    if references.exact is None or not is_floating(want):
        return False
    exact = references.exact[doubt.name]
    spread = references.spread(doubt.name) if references.nudges else Spread.around(exact)
    compared = without_overflow(doubt.beside(exact), spread)
    off = compared.of_compiled.sample.distance
    if off <= GROSS * compared.of_eager.size:
        return False
    # What is smaller than the rounding of the largest of its kind, eager may have by chance, as a zero in float16.
    noise = nudge(want.real.dtype) * doubt.scale
    is_near = WORSE_THAN_EAGER * max(compared.of_eager.sample.distance, noise) < off
    return references.nudges > 0 or (references.is_wide and is_near)


def _excused(doubt: Doubt, references: References, larger: float = 1.0) -> bool:
    """Whether a complaint was withdrawn, for rounding that is so many times larger than what was seen of it."""
    c, name = doubt.comparison, doubt.name
    if references.exact is None or not _is_steady(doubt, references):
        return False
    exact, spread = references.exact[name], references.spread(name)
    spread = spread.scaled(larger) if larger > 1 else spread
    if is_rounding(doubt.beside(exact), spread, doubt.scale):
        if not c.error:  # infinities differ, so that no elements were compared
            compared = without_overflow(doubt.beside(exact), spread)
            again = compare_elements(c.what, compared.got, compared.want)
            c.error, c.allowed = again.error, again.allowed
            c.beyond = int((doubt.got.isfinite() & ~doubt.want.isfinite()).sum())
        c.problem, c.allowed = None, max(c.allowed, c.error)
    return c.problem is None


def _is_steady(doubt: Doubt, references: References) -> bool:
    is_gradient = _kind(doubt.name) == "gradient"
    return references.is_steady(doubt.name, doubt.scale if is_gradient else 0.0)


def _kind(what: str) -> str:
    return what.partition(" ")[0]


def _largest(values: Values, kind: str) -> float:
    """The magnitude of the largest value of a kind: outputs, gradients or inputs."""
    alike = (v for what, v in values.items() if _kind(what) == kind)
    return max((magnitude(v) for v in alike if is_floating(v)), default=0.0)
