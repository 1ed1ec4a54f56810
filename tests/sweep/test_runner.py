"""The sweep's worker processes: what a crash or a timeout costs, and how a killed sweep goes on."""

import os
import signal
import time

import pytest

from tests.sweep import runner
from tests.sweep.opinfo import Case, Outcome

GOOD, BAD, CRASHING, SLOW = (Case(name, 4, "nop", "default") for name in ("good", "bad", "crashing", "slow"))


def work(pipe, log):
    """Stands for `runner.work`, with cases that need no torch."""
    while True:
        case, start = pipe.recv()
        for i in range(start, case.samples):
            pipe.send(("at", i))
            if case == BAD:
                pipe.send(("failure", Outcome(i, "Some", f"error of process {os.getpid()}")))
            if case == CRASHING and i == 1:
                os._exit(3)
            if case == CRASHING and i == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            if case == SLOW and i == 2:
                time.sleep(600)
        pipe.send(("done", None))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "work", work)
    monkeypatch.setattr(runner, "FOLDER", tmp_path)
    return tmp_path


def failures(results):
    return {r.case: [(f.sample, f.error, f.message) for f in r.failures] for r in results}


@pytest.mark.sweep
def test_a_crash_or_a_timeout_costs_one_sample(monkeypatch):
    monkeypatch.setattr(runner, "TIME_LIMIT", 60.0)
    found = failures(runner.run([SLOW, CRASHING, GOOD]))
    assert found == {
        SLOW: [(2, "Timeout", "it took over 60 s")],
        CRASHING: [(1, "Crash", "exit code 3"), (3, "Crash", "SIGKILL")],
        GOOD: [],
    }


@pytest.mark.sweep
def test_a_killed_sweep_goes_on_where_it_was(folder, monkeypatch):
    first = failures(runner.run([BAD]))
    with (folder / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"key": "a line that was cut of')
    assert failures(runner.run([GOOD, BAD])) == {GOOD: [], **first}
    monkeypatch.setattr(runner, "WORKERS", 0)  # now nothing may be left to run
    assert failures(runner.run([GOOD, BAD])) == {GOOD: [], **first}


def test_changed_code_makes_results_stale(monkeypatch):
    before = runner.key(GOOD)
    assert runner.key(GOOD) == before
    monkeypatch.setattr(runner, "_code_hash", lambda path: "changed")
    assert runner.key(GOOD) != before
