"""All operators of PyTorch's own test database, against eager mode: `make sweep`."""

import tomllib
import warnings
from collections import Counter
from pathlib import Path

import pytest

from tests.sweep.opinfo import PARTITIONS, Outcome, cases, operators
from tests.sweep.runner import Result, run

pytestmark = pytest.mark.sweep
EXPECTED = tomllib.loads(Path(__file__).with_name("expected_failures.toml").read_text(encoding="utf-8"))["expected"]


@pytest.mark.parametrize("backend", PARTITIONS)
def test_every_operator_equals_eager(backend):
    """Each sample passes or fails with the error that `expected_failures.toml` explains; none may do otherwise."""
    with warnings.catch_warnings(action="ignore"):
        results = run(cases(backend))
    expected, unexpected = Counter(), []
    for result in results:
        for outcome in outcomes(result):
            entry = expectation(result, outcome.sample)
            if entry is None and outcome.error is not None:
                unexpected.append(f"{where(result, outcome)} failed: {outcome.error}: {outcome.message}")
            elif entry is not None and outcome.error is None:
                unexpected.append(f"{where(result, outcome)} passed, expected was {entry['error']}: {entry['reason']}")
            elif entry is not None and not (outcome.error == entry["error"] and entry["message"] in outcome.message):
                unexpected.append(
                    f"{where(result, outcome)} failed: {outcome.error}: {outcome.message}; "
                    f"expected was {entry['error']} with {entry['message']!r}: {entry['reason']}"
                )
            elif entry is not None:
                expected[f"{entry['error']}: {entry['reason']}"] += 1
    print("\n" + table(backend, results, expected, unexpected))
    assert not unexpected, f"{len(unexpected)} samples; they are listed above"


def test_expected_failures_exist():
    """An operator that the database no longer has would be an expectation that nothing can contradict."""
    assert {name for entry in EXPECTED for name in entry["operators"]} <= set(operators())


def outcomes(result: Result) -> list[Outcome]:
    failed = {f.sample: f for f in result.failures}
    return [failed.get(i, Outcome(i)) for i in range(result.case.samples)]


def expectation(result: Result, sample: int) -> dict | None:
    """The entry of `expected_failures.toml` for one sample."""
    case = result.case
    for entry in EXPECTED:
        chosen = entry["operators"].get(case.operator, ())
        if (
            (chosen == "all" or sample in chosen)
            and case.backend in entry.get("backends", [case.backend])
            and case.partition in entry.get("partitions", [case.partition])
        ):
            return entry
    return None


def where(result: Result, outcome: Outcome) -> str:
    case = result.case
    return f"{case.operator}, sample {outcome.sample} of {case.samples}, {case.backend} with {case.partition}"


def table(backend: str, results: list[Result], expected: Counter, unexpected: list[str]) -> str:
    """Counts of samples: passed, expected failures by reason, unexpected ones."""
    lines = []
    for partition in PARTITIONS[backend]:
        part = [r for r in results if r.case.partition == partition]
        total, failed = sum(r.case.samples for r in part), sum(len(r.failures) for r in part)
        clean = sum(not r.failures for r in part)
        lines.append(
            f"{backend} with {partition}: {total - failed} of {total} samples equal eager; "
            f"{clean} of {len(part)} operators without a failure"
        )
    lines += [f"  {n:5} {reason}" for reason, n in expected.most_common()]
    lines += [f"{len(unexpected)} unexpected:" if unexpected else "nothing unexpected", *unexpected]
    return "\n".join(lines)
