"""Check a compiled function against eager on copies of the inputs, and then with other values.

The first run is compared value for value, floating point also by its distance from the function's float64 value. The
second, with other values and another seed, and a third beside it find what was baked in, left over or shared. After
them the first one's backward pass runs once more, which finds saved values that were overwritten.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from aotkit.checking.budget import Budget
from aotkit.checking.comparison import CheckReport, Comparison, compare_values
from aotkit.checking.judgement import Judgement, doubted, judge
from aotkit.checking.runs import Outcome, Plan, Run, run_on_copies
from aotkit.checking.second_run import SecondRun, run_again
from aotkit.errors import MismatchError, UndecidedWarning, is_out_of_memory, warn_user
from aotkit.torch_private.dispatch import pytree

QUITE_ELSE = 100  # times what rounding may be
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


@memory_given_back()
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
    layouts: bool = True,
    limit: Budget | None = None,
) -> CheckReport:
    """Run `compiled` on copies of `tensors`, and of others, and compare.

    Where eager itself gives something else each time, what differs is looked at twice: with other cotangents. What is
    in doubt when the time for it is used up stays undecided.

    Args:
        subject: what was compiled and how, for the report.
        names: one for each tensor.
        want: eager's outcome for the same tensors and plan.
        plan: how eager runs.
        resized: sets of inputs of other sizes, which the compiled function takes, too.
        threads: call it in two threads at a time, too.
        layouts: whether outputs have to have eager's strides.
        limit: time of which it takes its own.
    """
    # From the end of the first compiled run on, which may compile.
    budget = (limit or Budget(None)).part(STEPS * want.seconds + SECONDS)
    look = functools.partial(_look, names, compiled, eager, tensors, resized, threads, layouts, budget)
    report, varies = look(want, plan)
    if report.passed or not varies or budget.is_used_up:
        report.subject = subject
        return report
    plan = replace(plan, cotangents=plan.cotangents + 1)
    second, _ = look(run_on_copies(eager, tensors, plan), plan)
    wrong = {c.what for c in second.comparisons if c.problem}
    if wrong.isdisjoint(c.what for c in report.comparisons if c.problem):
        report = second
        report.comparisons = [replace(c, problem=None) for c in second.comparisons]
    report.subject = subject
    return report


def _look(
    names: Sequence[str],
    compiled: Run,
    eager: Run,
    tensors: Sequence[Tensor],
    resized: Sequence[Sequence[Tensor]],
    threads: bool,
    layouts: bool,
    budget: Budget,
    want: Outcome,
    plan: Plan,
) -> tuple[CheckReport, bool]:
    """The verdict on runs with one set of cotangents, and whether eager itself varies from run to run."""
    run = functools.partial(run_again, compiled, eager, tensors, resized, want, plan)
    judge_run = functools.partial(_judge_again, names, eager, want, tensors, plan, layouts, budget)
    second: _JudgedAgain | None = None

    def run_others(outputs: Any, gradients: Sequence[Tensor | None]) -> None:
        nonlocal second
        if not plan.cotangents:
            budget.restart()
        if not budget.is_used_up and (found := run((outputs, gradients), beside=threads)) is not None:
            second = judge_run(outputs, found)

    got = run_on_copies(compiled, tensors, replace(plan.compiled(want), twice=True, after_backward=run_others))
    if second is not None and second.overwritten:
        problem = "were overwritten by a later call"
        return CheckReport("", [Comparison("results of the first run", problem=problem)]), False
    outputs = got.outputs
    first = judge(names, eager, tensors, plan, got, want, exactness=True, layouts=layouts, budget=budget)
    del got  # its memory
    report = CheckReport("", first.settle())
    if not report.passed or second is None:
        return report, first.varies
    found = second.settle()
    wrong = [c for c in found if c.problem]
    report.repeated, report.resized = not wrong, second.resized
    if wrong and second.beside:
        alone = run(beside=False)
        if alone is not None and not any(c.problem for c in judge_run(outputs, alone).settle()):
            problem = "gives wrong values while another thread calls the function, too: the calls share memory"
            found = [Comparison("second run", problem=problem)]
    report.comparisons += [c for c in found if c.problem or c.undecided]
    return report, first.varies or second.varies


@dataclass
class _JudgedAgain:
    """A second and a third run. Their values are gone, but for those that are in doubt.

    Attributes:
        judgement: on the second.
        third: on the third.
        beside, resized, overwritten: as `SecondRun` has them.
    """

    judgement: Judgement
    third: Judgement
    beside: bool
    resized: bool
    overwritten: bool

    @property
    def varies(self) -> bool:
        """Whether eager gave something else when it ran again."""
        return self.judgement.varies or self.third.varies

    def settle(self) -> list[Comparison]:
        """Decide; frees what was in doubt."""
        judged = self.judgement.settle()
        return [replace(c, what=f"{c.what}, in a second run with other values") for c in judged] + self.third.settle()


def _judge_again(
    names: Sequence[str],
    eager: Run,
    first: Outcome,
    tensors: Sequence[Tensor],
    plan: Plan,
    layouts: bool,
    budget: Budget,
    outputs: Any,
    second: SecondRun,
) -> _JudgedAgain:
    """Judge a second and a third run.

    Args:
        first: what eager gave for the inputs of the first run, `tensors`.
        outputs: what the compiled function gave for them.
    """
    flags = second.beside, second.resized, second.overwritten
    third = Judgement([])
    if not first.draws and second.third is not None and not isinstance(second.got, Exception):
        found, values = _unlike_first(outputs, second.third)
        third = doubted(found, values, found, eager, tensors, plan, first, names, budget)
    if isinstance(second.got, Exception):
        problem = f"raises {type(second.got).__name__}: {second.got}"
        third = Judgement([Comparison("second run, with other values", problem=problem)])
        return _JudgedAgain(Judgement([]), third, *flags)
    inputs, others, got, want = second.inputs, second.plan, second.got, second.want
    judged = judge(names, eager, inputs, others, got, want, exactness=False, layouts=layouts, budget=budget)
    return _JudgedAgain(judged, third, *flags)


def _unlike_first(outputs: Any, third: Any) -> tuple[list[Comparison], dict[str, Tensor]]:
    """What a call gives for the values of the first run, where that is something quite else, and those values.

    Sums on a GPU are in any order.
    """
    found: list[Comparison] = []
    values: dict[str, Tensor] = {}
    pairs = zip(pytree.tree_leaves(outputs), pytree.tree_leaves(third), strict=True)
    for i, (a, b) in enumerate(pairs):
        c = compare_values(f"output {i}", b, a)
        c.what = f"{c.what}, in a third run as the first"
        if c.problem and (not c.error or c.error > QUITE_ELSE * c.allowed):
            found.append(c)
        if isinstance(b, Tensor):
            values[c.what] = b.detach()
    return found, values


def raise_if_different(report: CheckReport) -> None:
    """Raise MismatchError, with the report attached as `.report`, unless it passed; warn if that is not certain."""
    if report.undecided:
        message = f"{report} `check` on the compiled function compares again."
        warn_user(message, UndecidedWarning)
    if not report.passed:
        error = MismatchError(str(report))
        error.report = report  # type: ignore[attr-defined]
        raise error
