"""One case of the sweep: an operator of PyTorch's own test database under one backend and partitioner.

Every sample runs in eager mode and twice compiled (the first call compiles and checks, the second takes the cached
entry), on equal inputs and from the same seed; outputs, gradients and inputs are compared. The comparison here is not
`aotkit.checking.checker`, so a hole in that one shows up as a `WrongValue`.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import aotkit
from aotkit.testing.conformance.opinfo import difference, evaluate
from aotkit.torch_private.testing import function, operators, samples

PARTITIONS = {"nop": ("default", "min_cut", "nx_min_cut"), "inductor": ("min_cut",)}
MOST_SAMPLES = {"nop": 10_000, "inductor": 2}


@dataclass(frozen=True)
class Case:
    """The first `samples` samples of one operator, such as `linalg.svd`, under one backend and partitioner."""

    operator: str
    samples: int
    backend: str
    partition: str


@dataclass(frozen=True)
class Outcome:
    """What became of one sample.

    Attributes:
        error: the class of the error; None if the sample passed. Besides those that aotkit raises: `EagerError` if
            eager mode fails too, `WrongValue` if a result is wrong and no check noticed, `RanEagerly`, `Recompiled`.
        message: what the error says, in one line.
    """

    sample: int
    error: str | None = None
    message: str = ""


class WrongValue(Exception):
    """A compiled function returned something else than eager mode, unnoticed."""


class RanEagerly(Exception):
    """The function was not compiled at all."""


class Recompiled(Exception):
    """The second of two equal calls compiled again."""


class EagerError(Exception):
    """The sample fails in eager mode too, in the same way."""


def cases(backend: str) -> list[Case]:
    """All cases of one backend, in the order of the database; one operator's partitioners follow each other."""
    counts = {name: min(MOST_SAMPLES[backend], len(samples(name))) for name in operators()}
    return [Case(name, n, backend, partition) for name, n in counts.items() for partition in PARTITIONS[backend]]


def run_case(case: Case, start: int, at: Callable[[int], None]) -> Iterator[Outcome]:
    """Run the samples of a case from number `start` on; `at` is called with the number of each before it runs."""
    copies = zip(samples(case.operator), samples(case.operator), samples(case.operator), strict=True)
    for i, (first, second, third) in enumerate(copies):
        if start <= i < case.samples:
            at(i)
            yield _outcome(i, lambda: run_sample(case, first, second, third))  # noqa: B023  (called at once)


def _outcome(sample: int, run: Callable[[], None]) -> Outcome:
    try:
        with quiet():
            run()
    except Exception as e:
        return Outcome(sample, type(e).__name__, _one_line(e))
    return Outcome(sample)


def _one_line(error: Exception) -> str:
    report = getattr(error, "report", None)
    if report is not None:
        problems = [f"{c.what} {c.problem}" for c in report.comparisons if c.problem]
        return "; ".join(problems)[:300]
    return next(iter(str(error).splitlines()), "")[:300]


def run_sample(case: Case, first: Any, second: Any, third: Any) -> None:
    """Compare eager mode on one sample with two compiled calls on copies of it.

    Raises:
        WrongValue, RanEagerly, Recompiled, EagerError: see there.
        Exception: whatever compiling and running raises.
    """
    fn = function(case.operator, first)
    compiled: Any = aotkit.compile(fn, backend=case.backend, partition=case.partition)
    try:
        want = evaluate(fn, first)
    except Exception as e:
        _fails_too(compiled, second, e)
    for sample in (second, third):
        if (found := difference(evaluate(compiled, sample), want)) is not None:
            raise WrongValue(found)
    try:
        graphs = [compiled.graphs(s.input, *s.args, **s.kwargs) for s in (second, third)]
    except aotkit.TraceError as e:
        raise RanEagerly(str(e)) from e
    if graphs[0] is not graphs[1]:
        raise Recompiled("the second call compiled again")


def _fails_too(compiled: Any, sample: Any, error: Exception) -> None:
    try:
        evaluate(compiled, sample)
    except Exception as e:
        raise (EagerError(_one_line(error)) if type(e) is type(error) else e) from e
    raise WrongValue(f"eager mode raises {type(error).__name__}: {_one_line(error)}; the compiled function does not")


def quiet() -> Any:
    """Operators of the database warn about deprecations and the like."""
    return warnings.catch_warnings(action="ignore")
