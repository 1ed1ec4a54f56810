"""Check a compiled function against eager on copies of the inputs, and then with other values.

The first run is compared value for value, floating point also by its distance from the function's float64 value. The
second, with other values and another seed, and a third beside it find what was baked in, left over or shared. After
them the first one's backward pass runs once more, which finds saved values that were overwritten.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from aotkit.checking.comparison import CheckReport, Comparison
from aotkit.checking.judgement import judge
from aotkit.checking.runs import Baseline, Run, run_on_copies
from aotkit.checking.second_run import SecondRun, run_again
from aotkit.errors import MismatchError, UndecidedWarning, is_out_of_memory
from aotkit.runtime import warn_user
from aotkit.timeline import stage

# What a check may take once the function is compiled: so many runs of eager, and so many seconds more.
STEPS, SECONDS = 10, 10.0
NO_MEMORY = "there is no memory to run it beside eager on copies of its inputs. A smaller batch can be checked"


def memory_permitting(subject: str, compare: Callable[[], CheckReport]) -> CheckReport:
    """The report of a comparison; undecided where memory does not suffice: a call that fits alone is not to fail."""
    try:
        return compare()
    except Exception as e:
        if not is_out_of_memory(e):
            raise
        return unmeasured(subject)


def unmeasured(subject: str) -> CheckReport:
    """Of a call that there was no memory to compare for."""
    return CheckReport(subject, [Comparison("everything", undecided=NO_MEMORY)])


@contextmanager
def memory_given_back() -> Iterator[None]:
    """Leave none of a GPU's memory with torch that is used inside alone: float64 and attention in parts take much."""
    yield
    torch.cuda.empty_cache()


@stage("check")
@memory_given_back()
def check(
    subject: str,
    compiled: Run,
    baseline: Baseline,
    resized: Sequence[Sequence[Tensor]] = (),
    threads: bool = True,
) -> CheckReport:
    """Run a compiled function on copies of the same inputs, and of others, and compare.

    Where eager itself gives something else each time, what differs is looked at twice: with other cotangents. What is
    in doubt when the time for it is used up stays undecided.

    Args:
        subject: what was compiled and how, for the report.
        baseline: eager's run, of whose budget the check takes its own.
        resized: sets of inputs of other sizes, which the compiled function takes, too.
        threads: call it in two threads at a time, too.
    """
    # From the end of the first compiled run on, which may compile.
    budget = baseline.budget.part(STEPS * baseline.want.seconds + SECONDS)
    first = replace(baseline, budget=budget)
    report, varies = _look(first, compiled, resized, threads)
    if not report.passed and varies and not budget.is_used_up:
        plan = replace(first.plan, cotangents=first.plan.cotangents + 1)
        again = replace(first, plan=plan, want=run_on_copies(first.eager, first.tensors, plan))
        second, _ = _look(again, compiled, resized, threads)
        wrong = {c.what for c in second.comparisons if c.problem}
        if wrong.isdisjoint(c.what for c in report.comparisons if c.problem):
            report = second
            report.comparisons = [replace(c, problem=None) for c in second.comparisons]
    report.subject = subject
    return report


def _look(
    first: Baseline, compiled: Run, resized: Sequence[Sequence[Tensor]], threads: bool
) -> tuple[CheckReport, bool]:
    """The verdict on runs with one set of cotangents, and whether eager itself varies from run to run."""
    second: SecondRun | None = None

    def run_others(outputs: Any, gradients: Sequence[Tensor | None]) -> None:
        nonlocal second
        if not first.plan.cotangents:
            first.budget.restart()
        if not first.budget.is_used_up:
            with stage("run both with other values"):
                second = run_again(first, compiled, resized, outputs, gradients, threads)

    plan = replace(first.plan.compiled(first.want), twice=True, after_backward=run_others)
    with stage("run what was compiled"):
        got = run_on_copies(compiled, first.tensors, plan)
    if second is not None and second.overwritten:
        problem = "were overwritten by a later call"
        return CheckReport("", [Comparison("results of the first run", problem=problem)]), False
    outputs, judged = got.outputs, judge(first, got, exactness=True)
    del got  # its memory
    with stage("weigh what differs"):
        report = CheckReport("", judged.settle())
    if not report.passed or second is None:
        return report, judged.varies
    with stage("weigh what differs with other values"):
        found = second.settle()
    wrong = any(c.problem for c in found)
    report.repeated, report.resized = not wrong, second.resized
    if wrong and second.beside:
        alone = run_again(first, compiled, resized, outputs, beside=False)
        if alone is not None and not any(c.problem for c in alone.settle()):
            problem = "gives wrong values while another thread calls the function, too: the calls share memory"
            found = [Comparison("second run", problem=problem)]
    report.comparisons += [c for c in found if c.problem or c.undecided]
    return report, judged.varies or second.varies


def raise_if_different(report: CheckReport) -> None:
    """Raise MismatchError, with the report attached as `.report`, unless it passed; warn if that is not certain."""
    if report.undecided:
        warn_user(f"{report} `check` on the compiled function compares again.", UndecidedWarning)
    if not report.passed:
        error = MismatchError(str(report))
        error.report = report  # type: ignore[attr-defined]
        raise error
