"""Verdicts that outlive a process: what was checked in one is not checked again in the next."""

from collections.abc import Callable, Sequence
from dataclasses import asdict

from aotkit.checking.comparison import CheckReport, Comparison
from aotkit.keep import keep, kept, machine

KIND = "verdict"


def checked_before(subject: str, parts: Sequence[str] | None, check: Callable[[], CheckReport]) -> CheckReport:
    """The verdict that was kept for all these texts, else that of the check, which is kept if all was compared.

    What stays undecided for want of time would do so in the next process, too, and the user is told there again.

    Args:
        parts: all that decides what eager and what was compiled compute, but for values and the machine; None: that
            cannot be told.
    """
    if parts is None:
        return check()
    if (report := kept_verdict(subject, parts)) is not None:
        return report
    report = check()
    if report.passed and report.repeated:
        comparisons = [asdict(comparison) for comparison in report.comparisons]
        keep(KIND, (*machine(), *parts), {"comparisons": comparisons, "repeated": True, "resized": report.resized})
    return report


def kept_verdict(subject: str, parts: Sequence[str]) -> CheckReport | None:
    """The verdict that was kept for all these texts."""
    if (found := kept(KIND, (*machine(), *parts))) is None:
        return None
    told = [Comparison(**values) for values in found["comparisons"]]
    return CheckReport(subject, told, found["repeated"], found["resized"], kept=True)
