"""All operators of PyTorch's own test database, against eager mode: `make sweep`."""

import tomllib
import warnings
from collections import Counter
from pathlib import Path

import pytest

from tests.sweep.opinfo import PARTITIONS, Outcome, cases, operators
from tests.sweep.runner import Result, code_hash, run

pytestmark = pytest.mark.sweep
EXPECTED = tomllib.loads(Path(__file__).with_name("expected_failures.toml").read_text(encoding="utf-8"))["expected"]
PASSED, UNEXPECTED = "equal to eager", "unexpected"


@pytest.mark.parametrize("backend", PARTITIONS)
def test_every_operator_equals_eager(backend):
    """Each sample passes or fails with the error that `expected_failures.toml` explains; none may do otherwise."""
    with warnings.catch_warnings(action="ignore"):
        results = run(cases(backend))
    unexpected = [line for result in results for line in judge(result)[1]]
    print("\n" + table(backend, results))
    print(*unexpected, sep="\n")
    assert not unexpected, f"{len(unexpected)} samples; they are listed above"


def test_expected_failures_exist():
    """An operator that the database no longer has would be an expectation that nothing can contradict."""
    assert {name for entry in EXPECTED for name in entry["operators"]} <= set(operators())


def judge(result: Result) -> tuple[Counter, list[str]]:
    """How many samples passed or failed as expected, by reason; and a line for each that did otherwise."""
    counts, unexpected = Counter(), []
    for outcome in outcomes(result):
        entry, error = expectation(result, outcome.sample), f"{outcome.error}: {outcome.message}"
        if entry is None and outcome.error is None:
            counts[PASSED] += 1
        elif entry is None:
            unexpected.append(f"{where(result, outcome)} failed: {error}")
        elif outcome.error is None:
            unexpected.append(f"{where(result, outcome)} passed, expected was {entry['error']}: {entry['reason']}")
        elif outcome.error == entry["error"] and entry["message"] in outcome.message:
            counts[f"{entry['error']}: {entry['reason']}"] += 1
        else:
            expected = f"{entry['error']} with {entry['message']!r}: {entry['reason']}"
            unexpected.append(f"{where(result, outcome)} failed: {error}; expected was {expected}")
    counts[UNEXPECTED] = len(unexpected)
    return counts, unexpected


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


def table(backend: str, results: list[Result]) -> str:
    """In Markdown, for each partitioner: how many samples passed, failed as expected by reason, or did otherwise."""
    columns = {}
    for partition in PARTITIONS[backend]:
        part = [r for r in results if r.case.partition == partition]
        counts = sum((judge(r)[0] for r in part), Counter())
        columns[partition] = {
            "operators": len(part),
            "samples": sum(r.case.samples for r in part),
            PASSED: counts.pop(PASSED, 0),
            **{reason: n for reason, n in counts.items() if reason != UNEXPECTED},
            UNEXPECTED: counts[UNEXPECTED],
            "hash of the code": code_hash(backend, partition),
        }
    rows = dict.fromkeys(row for column in columns.values() for row in column)
    lines = [["", *(f"{backend} with {partition}" for partition in columns)], ["---", *["---:"] * len(columns)]]
    lines += [[row, *(str(column.get(row, 0)) for column in columns.values())] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
