"""`bench start`: what first steps cost, and what is told of it."""

import json
import math
import subprocess
import sys

import pytest
import torch

from aotkit.benchmark.start.measure import measure
from aotkit.benchmark.start.process import EAGER, OURS, TORCH_COMPILE, UNCHECKED, WAYS, first_step
from aotkit.benchmark.start.report import Row, StartReport, steps_until_paid
from aotkit.benchmark.start.workloads import WORKLOADS
from aotkit.cli.dispatch import main


def run(first, step, **phases):
    return {"first": first, "step": step, "phases": phases}


def report(**rows):
    return StartReport({"processor": "some", "gpu": None}, "2.13.0", "cpu", [*rows.values()])


@pytest.fixture
def found():
    return report(
        eager=Row("mlp", EAGER, [run(0.1, 0.1)]),
        theirs=Row("mlp", TORCH_COMPILE, [run(10.0, 0.05, Inductor=8.0)], [run(4.0, 0.05)]),
        ours=Row("mlp", OURS, [run(8.0, 0.06, check=2.0), run(6.0, 0.06, check=1.0)], [run(1.0, 0.04)]),
        broken=Row("mlp", "aotkit, check=False", problem="RuntimeError: no"),
    )


def test_a_start_is_a_share_of_torch_compiles(found):
    line = next(line for line in str(found).splitlines() if line.startswith("mlp") and OURS in line)
    assert line.split()[2:6] == ["7.00", "0.70", "1.00", "0.25"]  # medians


def test_steps_until_a_start_has_paid():
    eager, slow = Row("w", EAGER, [run(0.1, 0.1)]), Row("w", OURS, [run(1.1, 0.2)])
    fast = Row("w", OURS, [run(1.1, 0.05)])
    assert steps_until_paid(fast, eager) == 20
    assert math.isinf(steps_until_paid(slow, eager))
    assert steps_until_paid(fast, slow) == 0.0
    assert steps_until_paid(Row("w", OURS, problem="no"), eager) is None


def test_rows_that_failed_are_told(found):
    assert not found.passed
    assert "RuntimeError: no" in str(found)


def test_parts_of_a_cold_start_are_told(found):
    assert "mlp, torch.compile, cold: Inductor 8.00 s" in str(found)
    assert "check 1.50 s" in str(found)


def test_json_can_be_joined(found):
    data = json.loads(json.dumps(found.json()))
    assert str(StartReport.joined([data])) == str(found)


def test_each_way_tells_its_phases(monkeypatch):
    inputs = {"x": torch.ones(3, requires_grad=True)}
    monkeypatch.setitem(WORKLOADS["cpu"], "sine", lambda: (lambda x: x.sin(), inputs))
    phases = {way: first_step("cpu", "sine", way)["phases"] for way in WAYS}
    assert not phases[EAGER]
    assert phases[TORCH_COMPILE]["TorchDynamo"] > 0  # what its caches have may cost nothing more
    assert phases[OURS]["check"] > 0
    assert "check" not in phases[UNCHECKED]


@pytest.mark.sweep
def test_importing_aotkit_counts():
    """The clock begins after this."""
    program = "import sys, aotkit.benchmark.start.process; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, text=True, stdout=subprocess.PIPE)
    imported = set(done.stdout.split())
    assert {"aotkit.api", "aotkit.compiler", "functorch", "torch._dynamo", "torch._inductor"}.isdisjoint(imported)


@pytest.mark.sweep
def test_each_step_is_the_first_of_a_process():
    told = []
    eager, broken = measure(["mlp"], ["no such way"], rounds=2, progress=told.append).rows
    assert (eager.way, len(eager.cold), len(eager.warm)) == (EAGER, 2, 0)
    assert all(run["first"] > 0 for run in eager.cold)
    assert len(told) == 3  # what has failed once is not tried again
    assert "'no such way' is none of" in broken.problem


def test_unknown_names_are_refused(capsys):
    assert main(["bench", "start", "--workloads", "nothing"]) == 2
    assert "blocks-32" in capsys.readouterr().err
    assert main(["bench", "start", "--ways", "nothing"]) == 2
    error = capsys.readouterr().err
    assert all(way in error for way in WAYS)
