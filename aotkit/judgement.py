"""Judge one run: compare it with eager's, then withdraw the complaints that rounding explains."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from aotkit.aot import pytree
from aotkit.comparison import Comparison, compare
from aotkit.copies import Outcome, Plan, Run
from aotkit.pieces import magnitude
from aotkit.rounding import EagerValue, References, Values, is_less_exact, is_rounding


@dataclass
class Doubt:
    """A value that differs from eager's, perhaps by rounding.

    Attributes:
        got: the compiled one.
    """

    comparison: Comparison
    got: Tensor
    eager: EagerValue


@dataclass
class Judgement:
    """What a comparison found, and what is still in doubt. Of the values that were compared, it has only those.

    Attributes:
        references: runs that settle it, if it can be settled.
    """

    comparisons: list[Comparison]
    doubts: list[Doubt] = field(default_factory=list)
    references: References | None = None

    def settle(self) -> list[Comparison]:
        """Decide; frees what was in doubt."""
        doubts, references, self.doubts, self.references = self.doubts, self.references, [], None
        if references is None or references.exact is None:
            return self.comparisons
        for doubt in doubts:
            _complain_of_exactness(doubt, references.exact)
        doubts = [doubt for doubt in doubts if doubt.comparison.problem]
        references.forget_all_but([doubt.comparison.what for doubt in doubts])
        for doubt in doubts:
            _excuse_rounding(doubt, references)
        return self.comparisons


def judge(
    names: Sequence[str],
    eager: Run,
    tensors: Sequence[Tensor],
    plan: Plan,
    got: Outcome,
    want: Outcome,
    exactness: bool,
) -> Judgement:
    """Compare a run with eager's.

    Args:
        names: one for each tensor.
        tensors: what both ran on copies of.
        plan: how eager ran.
        exactness: also complain where eager is far more exact.
    """
    comparisons = compare(names, got, want)
    # Only what differs by a number can be rounding; nothing excuses the rest.
    if any(c.problem and not c.error for c in comparisons):
        return Judgement(comparisons)
    doubts = []
    for got_values, want_values in zip(_kinds(got, names), _kinds(want, names), strict=True):
        found = [c for c in comparisons if (c.error if exactness else c.problem) and c.what in want_values]
        largest = max(map(magnitude, want_values.values()), default=0.0) if found else 0.0
        doubts += [
            Doubt(c, got_values[c.what], EagerValue(want_values[c.what], largest))
            for c in found
            if c.what in got_values
        ]
    if not doubts:
        return Judgement(comparisons)
    wanted = {doubt.comparison.what: doubt.eager for doubt in doubts}
    references = References(eager, tensors, want, plan, wanted, functools.partial(_values, names))
    return Judgement(comparisons, doubts, references)


def _complain_of_exactness(doubt: Doubt, exact: Values) -> None:
    c = doubt.comparison
    if c.problem is None and is_less_exact(doubt.got, doubt.eager, exact[c.what]):
        c.problem = "is far less exact than eager's: the root mean square of its distance from float64 is larger"


def _excuse_rounding(doubt: Doubt, references: References) -> None:
    c, got, eager = doubt.comparison, doubt.got, doubt.eager
    if references.exact is None or references.spreads is None:
        return
    if not references.is_reproducible:
        c.problem = f"{c.problem}; eager itself gives something else each time"
        return
    exact, spread = references.exact[c.what], references.spreads[c.what]
    if is_rounding(got, eager, exact, spread) and not is_less_exact(got, eager, exact, spread):
        c.problem, c.allowed = None, max(c.allowed, c.error)


def _values(names: Sequence[str], outcome: Outcome) -> Values:
    return {what: value for kind in _kinds(outcome, names) for what, value in kind.items()}


def _kinds(outcome: Outcome, names: Sequence[str]) -> Sequence[Values]:
    """Outputs, gradients and mutated inputs of floating point, by the names that comparisons have."""
    outputs = {f"output {i}": v for i, v in enumerate(pytree.tree_leaves(outcome.outputs))}
    gradients = {f"gradient of {n}": v for n, v in zip(names, outcome.gradients or (), strict=False)}
    inputs = {f"input {n} after the call": v for n, v in zip(names, outcome.inputs, strict=True)}
    return [
        {
            what: v.detach()
            for what, v in kind.items()
            if isinstance(v, Tensor) and (v.is_floating_point() or v.is_complex())
        }
        for kind in (outputs, gradients, inputs)
    ]
