"""Check a compiled function against eager on copies of the inputs, and then with other values.

The first run is compared value for value, floating point also by its distance from the function's float64 value. The
second, with other values and another seed, and a third beside it find what was baked in, left over or shared. After
them the first one's backward pass runs once more, which finds saved values that were overwritten.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from aotkit.aot import pytree
from aotkit.comparison import CheckReport, Comparison, compare_values
from aotkit.copies import Outcome, Plan, Run, run_on_copies
from aotkit.errors import MismatchError
from aotkit.judgement import Judgement, judge
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
        want: eager's outcome for the same tensors and plan.
        plan: how eager runs.
        resized: sets of inputs of other sizes, which the compiled function takes, too.
        threads: call it in two threads at a time, too.
    """
    run = functools.partial(run_again, compiled, eager, tensors, resized, want, plan)
    judge_run = functools.partial(_judge_again, names, eager, want)
    second: _JudgedAgain | None = None

    def run_others(outputs: Any, gradients: Sequence[Tensor | None]) -> None:
        nonlocal second
        if (found := run((outputs, gradients), beside=threads)) is not None:
            second = judge_run(outputs, found)

    got = run_on_copies(compiled, tensors, replace(plan.compiled(want), twice=True, after_backward=run_others))
    if second is not None and second.overwritten:
        problem = "were overwritten by a later call"
        return CheckReport(subject, [Comparison("results of the first run", problem=problem)])
    outputs, first = got.outputs, judge(names, eager, tensors, plan, got, want, exactness=True)
    del got  # its memory
    report = CheckReport(subject, first.settle())
    if not report.passed or second is None:
        return report
    wrong = second.problems()
    report.repeated, report.resized = not wrong, second.resized
    if wrong:
        alone = run(beside=False) if second.beside else None
        if alone is not None and not judge_run(outputs, alone).problems():
            problem = "gives wrong values while another thread calls the function, too: the calls share memory"
            wrong = [Comparison("second run", problem=problem)]
        report.comparisons += wrong
    return report


@dataclass
class _JudgedAgain:
    """A second and a third run. Their values are gone, but for those that are in doubt.

    Attributes:
        others: further problems.
        beside, resized, overwritten: as `SecondRun` has them.
    """

    judgement: Judgement
    others: list[Comparison]
    beside: bool
    resized: bool
    overwritten: bool

    def problems(self) -> list[Comparison]:
        """What differs from eager."""
        judged = self.judgement.settle()
        return [replace(c, what=f"{c.what}, in a second run with other values") for c in judged if c.problem] + (
            self.others
        )


def _judge_again(names: Sequence[str], eager: Run, first: Outcome, outputs: Any, second: SecondRun) -> _JudgedAgain:
    """Judge a second and a third run.

    Args:
        first: what eager gave for the inputs of the first run.
        outputs: what the compiled function gave for them.
    """
    flags = second.beside, second.resized, second.overwritten
    if isinstance(second.got, Exception):
        problem = f"raises {type(second.got).__name__}: {second.got}"
        return _JudgedAgain(Judgement([]), [Comparison("second run, with other values", problem=problem)], *flags)
    judged = judge(names, eager, second.inputs, second.plan, second.got, second.want, exactness=False)
    others = [] if first.draws or second.third is None else _unlike_first(outputs, second.third)
    return _JudgedAgain(judged, others, *flags)


def _unlike_first(outputs: Any, third: Any) -> list[Comparison]:
    """What a call gives for the values of the first run, where that is something quite else.

    Sums on a GPU are in any order.
    """
    pairs = zip(pytree.tree_leaves(outputs), pytree.tree_leaves(third), strict=True)
    compared = [compare_values(f"output {i}, in a third run as the first", b, a) for i, (a, b) in enumerate(pairs)]
    return [c for c in compared if c.problem and (not c.error or c.error > QUITE_ELSE * c.allowed)]


def raise_if_different(report: CheckReport) -> None:
    """Raise MismatchError, with the report attached as `.report`, unless it passed."""
    if not report.passed:
        error = MismatchError(str(report))
        error.report = report  # type: ignore[attr-defined]
        raise error
