"""Check a compiled function against eager on copies of the inputs, and then with other values.

The first run is compared value for value, floating point also by its distance from the function's float64 value. The
second, with other values and another seed, finds what was baked in or left over from the first; its backward pass
runs twice, which finds saved values that were overwritten.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from aotkit.aot import pytree
from aotkit.comparison import CheckReport, Comparison, compare, compare_values
from aotkit.copies import Outcome, Plan, Run, run_on_copies
from aotkit.errors import MismatchError
from aotkit.rounding import References, is_less_exact, is_rounding

SECOND_SEED = 0xF12E5


def check(
    subject: str,
    names: Sequence[str],
    compiled: Run,
    eager: Run,
    tensors: Sequence[Tensor],
    want: Outcome,
    plan: Plan = Plan(),  # noqa: B008
) -> CheckReport:
    """Run `compiled` on copies of `tensors` and compare; if all is well, once more with other values.

    Args:
        subject: what was compiled and how, for the report.
        names: one for each tensor.
        want: eager's outcome for the same tensors and plan; the inputs in it are freed.
        plan: how eager runs.
    """
    got = run_on_copies(compiled, tensors, plan.compiled())
    references = References(eager, tensors, want, plan)
    report = CheckReport(subject, _judged(names, got, want, references, exactness=True))
    if report.passed:
        del references  # its memory
        plan = replace(plan, seed=SECOND_SEED if want.draws else None)
        for change in (_other_values, _other_inexact_values):
            second = _with_other_values(names, compiled, eager, tensors, replace(plan, change=change), got)
            if second is not None:
                report.repeated = True
                report.comparisons += second
                break
    return report


def _other_values(values: Tensor) -> Tensor:
    """The same integers in other places, and floating-point values up to a quarter nearer to zero.

    So indices, signs, probabilities, zeros and infinities remain such.
    """
    if not (values.is_floating_point() or values.is_complex()):
        return values.roll(1)
    return _other_inexact_values(values)


def _other_inexact_values(values: Tensor) -> Tensor:
    """The same without the integers, which may have to be in order."""
    if not (values.is_floating_point() or values.is_complex()):
        return values.clone()
    generator = torch.Generator().manual_seed(SECOND_SEED)
    factors = 1 - torch.rand(values.shape, generator=generator) / 4
    return values * factors.to(device=values.device, dtype=values.real.dtype)


def _with_other_values(
    names: Sequence[str], compiled: Run, eager: Run, tensors: Sequence[Tensor], plan: Plan, first: Outcome
) -> list[Comparison] | None:
    """What differs in a second run; None if the function does not take such values.

    A third call with the values of the first run comes between its forward and its backward pass: buffers that calls
    share are overwritten then.

    Args:
        first: of the compiled function.
    """
    third: list[Outcome] = []

    def call_again() -> None:
        again = Plan(plan.generators, backward=False)
        third.append(run_on_copies(compiled, tensors, again))

    try:
        want = run_on_copies(eager, tensors, plan)
    except Exception:
        return None
    before = _fingerprint(first)
    try:
        got = run_on_copies(compiled, tensors, replace(plan.compiled(), twice=True, between=call_again))
    except Exception as e:
        return [Comparison("second run, with other values", problem=f"raises {type(e).__name__}: {e}")]
    references = References(eager, tensors, want, plan)
    judged = _judged(names, got, want, references, exactness=False)
    found = [replace(c, what=f"{c.what}, in a second run with other values") for c in judged if c.problem]
    if before != _fingerprint(first):
        found.append(Comparison("results of the first run", problem="were overwritten by a later call"))
    return found if want.draws else found + _unlike_first(first, third[0])


def _fingerprint(outcome: Outcome) -> list[Any]:
    """Numbers that change when a result does."""
    results = [t for t in (*pytree.tree_leaves(outcome.outputs), *(outcome.gradients or ())) if isinstance(t, Tensor)]
    sizes = [t.detach().abs() if t.is_complex() else t.detach() for t in results if t.layout is torch.strided]
    return [str(t.double().abs().nan_to_num().sum()) for t in sizes]


def _unlike_first(first: Outcome, third: Outcome) -> list[Comparison]:
    """What a call gives for the values of the first run, where that is something else."""
    pairs = zip(pytree.tree_leaves(first.outputs), pytree.tree_leaves(third.outputs), strict=True)
    compared = [compare_values(f"output {i}, in a third run as the first", b, a) for i, (a, b) in enumerate(pairs)]
    return [c for c in compared if c.problem]


def _judged(
    names: Sequence[str], got: Outcome, want: Outcome, references: References, exactness: bool
) -> list[Comparison]:
    """Compare; withdraw complaints that rounding explains.

    Args:
        exactness: also complain where eager is far more exact.
    """
    comparisons = compare(names, got, want)
    for outcome in (got, want):
        outcome.forget_unchanged()
    # Only what differs by a number can be rounding; nothing excuses the rest.
    if any(c.problem and not c.error for c in comparisons):
        return comparisons
    if not any(c.error if exactness else c.problem for c in comparisons):
        return comparisons
    if (exact := references.exact) is None:
        return comparisons
    for kind in (_outputs, _gradients, _mutated):
        got_values, want_values, exact_values = (kind(run, names) for run in (got, want, exact))
        largest = max((float(v.abs().nan_to_num().max()) for v in want_values.values() if v.numel()), default=0.0)
        for c in comparisons:
            if not c.error or any(c.what not in values for values in (got_values, want_values, exact_values)):
                continue
            g, w, e = got_values[c.what], want_values[c.what], exact_values[c.what]
            if e.shape != w.shape:
                continue
            if exactness and c.problem is None and is_less_exact(g, w, [e]):
                c.problem = (
                    "is far less exact than eager's: the root mean square of its distance from float64 is larger"
                )
            if c.problem is None or references.nudged is None:
                continue
            nudged = [kind(run, names)[c.what] for run in references.nudged]
            if is_rounding(g, w, e, nudged, largest) and not is_less_exact(g, w, [e, *nudged]):
                c.problem, c.allowed = None, max(c.allowed, c.error)
    return comparisons


Values = dict[str, Tensor]


def _outputs(outcome: Outcome, names: Sequence[str]) -> Values:
    return _inexact({f"output {i}": v for i, v in enumerate(pytree.tree_leaves(outcome.outputs))})


def _gradients(outcome: Outcome, names: Sequence[str]) -> Values:
    return _inexact({f"gradient of {n}": v for n, v in zip(names, outcome.gradients or (), strict=False)})


def _mutated(outcome: Outcome, names: Sequence[str]) -> Values:
    triples = zip(names, outcome.inputs, outcome.changed, strict=True)
    return _inexact({f"input {n} after the call": v for n, v, changed in triples if changed})


def _inexact(values: dict[str, Any]) -> Values:
    return {
        k: v.detach() for k, v in values.items() if isinstance(v, Tensor) and (v.is_floating_point() or v.is_complex())
    }


def raise_if_different(report: CheckReport) -> None:
    """Raise MismatchError, with the report attached as `.report`, unless it passed."""
    if not report.passed:
        error = MismatchError(str(report))
        error.report = report  # type: ignore[attr-defined]
        raise error
