"""Check a compiled function against eager on copies of the inputs, and then with other values.

The first run is compared value for value, floating point also by its distance from the function's float64 value. The
second, with other values and another seed, and a third beside it find what was baked in, left over or shared. After
them the first one's backward pass runs once more, which finds saved values that were overwritten.
"""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from aotkit.aot import pytree
from aotkit.comparison import CheckReport, Comparison, compare, compare_values
from aotkit.copies import Outcome, Plan, Run, run_on_copies
from aotkit.errors import MismatchError
from aotkit.rounding import References, is_less_exact, is_rounding
from aotkit.second_run import SecondRun, run_again

QUITE_ELSE = 100  # times what rounding may be


def check(
    subject: str,
    names: Sequence[str],
    compiled: Run,
    eager: Run,
    tensors: Sequence[Tensor],
    want: Outcome,
    plan: Plan = Plan(),  # noqa: B008
    resized: Sequence[Sequence[Tensor]] = (),
    threads: bool = True,
) -> CheckReport:
    """Run `compiled` on copies of `tensors`, and of others, and compare.

    Args:
        subject: what was compiled and how, for the report.
        names: one for each tensor.
        want: eager's outcome for the same tensors and plan; the inputs in it are freed.
        plan: how eager runs.
        resized: sets of inputs of other sizes, which the compiled function takes, too.
        threads: call it in two threads at a time, too.
    """
    again = functools.partial(run_again, compiled, eager, tensors, resized, want, plan)
    second: SecondRun | None = None

    def run_others(*results: Any) -> None:
        nonlocal second
        second = again(results, beside=threads)

    got = run_on_copies(compiled, tensors, replace(plan.compiled(), twice=True, after_backward=run_others))
    if second is not None and second.overwritten:
        problem = "were overwritten by a later call"
        return CheckReport(subject, [Comparison("results of the first run", problem=problem)])
    references = References(eager, tensors, want, plan)
    report = CheckReport(subject, _judged(names, got, want, references, exactness=True))
    del references  # its memory
    if not report.passed or second is None:
        return report
    wrong = _judged_again(names, eager, got, second)
    report.repeated, report.resized = not wrong, second.resized
    if wrong:
        alone = again(beside=False) if second.beside else None
        if alone is not None and not _judged_again(names, eager, got, alone):
            problem = "gives wrong values while another thread calls the function, too: the calls share memory"
            wrong = [Comparison("second run", problem=problem)]
        report.comparisons += wrong
    return report


def _judged_again(names: Sequence[str], eager: Run, first: Outcome, second: SecondRun) -> list[Comparison]:
    """What differs in a second and a third run."""
    if isinstance(second.got, Exception):
        problem = f"raises {type(second.got).__name__}: {second.got}"
        return [Comparison("second run, with other values", problem=problem)]
    references = References(eager, second.inputs, second.want, second.plan)
    judged = _judged(names, second.got, second.want, references, exactness=False)
    found = [replace(c, what=f"{c.what}, in a second run with other values") for c in judged if c.problem]
    return found if first.draws or second.third is None else found + _unlike_first(first, second.third)


def _unlike_first(first: Outcome, third: Any) -> list[Comparison]:
    """What a call gives for the values of the first run, where that is something quite else.

    Sums on a GPU are in any order.
    """
    pairs = zip(pytree.tree_leaves(first.outputs), pytree.tree_leaves(third), strict=True)
    compared = [compare_values(f"output {i}, in a third run as the first", b, a) for i, (a, b) in enumerate(pairs)]
    return [c for c in compared if c.problem and (not c.error or c.error > QUITE_ELSE * c.allowed)]


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
            if not references.is_reproducible:
                c.problem += "; eager itself gives something else each time"
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
