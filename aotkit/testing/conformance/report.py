"""Run the requirements on one plug-in, without pytest: what passed, what failed, and what was expected to fail."""

import contextlib
import io
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch

from aotkit.errors import UnknownNameError
from aotkit.testing.conformance.requirements import Requirement, Subject

Status = Literal["passed", "failed", "expected failure", "unexpectedly passed"]
MOST_CHARACTERS = 300


@dataclass(frozen=True)
class Outcome:
    """What became of one requirement; the message, one line, is how it failed, or why that was expected."""

    requirement: Requirement
    status: Status
    message: str = ""

    @property
    def is_failure(self) -> bool:
        return self.status in ("failed", "unexpectedly passed")


@dataclass(frozen=True)
class Report:
    """What became of all requirements of one plug-in, and how long that took."""

    subject: Subject
    outcomes: Sequence[Outcome]
    seconds: float

    @property
    def passed(self) -> bool:
        return not any(o.is_failure for o in self.outcomes)

    def __str__(self) -> str:
        lines = [f"{o.requirement.name}: {o.message} [{o.requirement.says}]" for o in self.outcomes if o.is_failure]
        passed, expected = (sum(o.status == s for o in self.outcomes) for s in ("passed", "expected failure"))
        failed = len(self.outcomes) - passed - expected
        counts = f"{passed} passed, {expected} expected failures, {failed} failed in {self.seconds:.0f} s"
        return "\n".join([*lines, f"{self.subject.name}: {counts}"])

    def json(self) -> dict[str, Any]:
        """A document of schema 1."""
        cases = [
            {"name": o.requirement.name, "requires": o.requirement.says, "status": o.status, "message": o.message}
            for o in self.outcomes
        ]
        about = {"name": self.subject.name, "kind": self.subject.kind, "device": str(self.subject.device)}
        return {"schema": 1, **about, "passed": self.passed, "seconds": round(self.seconds, 1), "cases": cases}


def run(
    subject: Subject,
    requirements: Sequence[Requirement],
    expected_failures: Mapping[str, str] | None = None,
    progress: Callable[[Requirement], None] = lambda requirement: None,
) -> Report:
    """Examine the plug-in.

    Args:
        expected_failures: name or pattern (`dtype/*`) -> reason. Every requirement that one matches has to fail.
        progress: called before each requirement.

    Raises:
        UnavailableError: the plug-in cannot run here.
        UnknownNameError: an expected failure matches no requirement.
    """
    subject.plug_in()
    reasons = reasons_for(requirements, expected_failures or {})
    start, outcomes = time.perf_counter(), []
    for requirement in requirements:
        progress(requirement)
        outcomes.append(_outcome(subject, requirement, reasons.get(requirement.name)))
    return Report(subject, outcomes, time.perf_counter() - start)


def matching(requirements: Sequence[Requirement], pattern: str) -> list[Requirement]:
    """Those whose name the pattern matches.

    Raises:
        UnknownNameError: it matches none.
    """
    found = [r for r in requirements if fnmatchcase(r.name, pattern)]
    if not found:
        groups = ", ".join(f"{group}/*" for group in sorted({r.name.partition("/")[0] for r in requirements}))
        raise UnknownNameError(f"no conformance case matches {pattern!r}. There are: {groups}.")
    return found


def reasons_for(requirements: Sequence[Requirement], expected_failures: Mapping[str, str]) -> dict[str, str]:
    """Name of a requirement -> why it is expected to fail.

    Raises:
        UnknownNameError: an expected failure matches no requirement.
    """
    return {r.name: why for pattern, why in expected_failures.items() for r in matching(requirements, pattern)}


@contextmanager
def undisturbed() -> Iterator[None]:
    """Leave torch's random state and switches as they were; what a plug-in prints or warns of is not for the reader."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    with (
        torch.random.fork_rng(devices),
        torch.set_grad_enabled(True),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


def _outcome(subject: Subject, requirement: Requirement, reason: str | None) -> Outcome:
    problem = None
    try:
        with undisturbed():
            requirement.check(subject)
    except Exception as e:
        problem = _line(e)
    if reason is None:
        return Outcome(requirement, "failed" if problem else "passed", problem or "")
    if problem:
        return Outcome(requirement, "expected failure", reason)
    return Outcome(
        requirement, "unexpectedly passed", f"unexpectedly passes: remove it from expected_failures ({reason})"
    )


def _line(error: Exception) -> str:
    text = " ".join([type(error).__name__ + ":", *str(error).split(), *getattr(error, "__notes__", ())])
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 3] + "..."
