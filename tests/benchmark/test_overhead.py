"""`python -m aotkit bench overhead`: what it times, what it says, and that it notices a wrong variant."""

import json

import pytest
import torch

import aotkit
from aotkit.benchmark import Samples
from aotkit.benchmark.overhead import measure as overhead
from aotkit.benchmark.overhead.report import OverheadReport, Row
from aotkit.benchmark.overhead.variants import Calls, variants
from aotkit.benchmark.overhead.workloads import workloads_on
from aotkit.cli import main

PHASES = ["forward", "backward", "no-grad", "forward + backward"]


def eager(workload):
    return Calls(workload.fn, workload.fn)


def nop(workload):
    compiled = aotkit.compile(workload.fn, backend="nop", partition="min_cut")
    return Calls(compiled, compiled)


def wrong_result(workload):
    return Calls(lambda *args: workload.fn(*args) + 1, workload.fn)


def wrong_gradient(workload):
    return Calls(lambda a, *args: workload.fn(a.detach() * 2 - a, *args) * 1, workload.fn)


def no_gradient(workload):
    return Calls(lambda a, *args: workload.fn(a.detach(), *args), workload.fn)


def wrong_without_gradients(workload):
    return Calls(workload.fn, lambda *args: workload.fn(*args) + 1)


def broken(workload):
    raise RuntimeError("no such\ninstruction")


WRONG = {
    wrong_result: "result differs from eager's",
    wrong_gradient: "gradient 0 differs from eager's",
    no_gradient: "gradient 0 is missing, unlike eager's",
    wrong_without_gradients: "result under no_grad differs from eager's",
    broken: "RuntimeError: no such instruction",
}


def measure(*names, **rivals):
    return overhead.overhead(names, seconds=0, rivals={"eager": eager, **rivals})


@pytest.fixture
def few_rivals(monkeypatch):
    """The command line compares these instead of compiling with Inductor."""
    rivals = {"eager": eager, "aotkit": nop}
    monkeypatch.setattr(overhead, "variants", lambda device: rivals)
    return rivals


def test_every_real_rival_equals_eager_and_is_timed_in_every_phase(monkeypatch):
    # However slow the machine is, a sample is as many calls as may be.
    monkeypatch.setattr(overhead, "SAMPLE_SECONDS", {"cpu": 1000.0})
    monkeypatch.setattr(overhead, "MOST_CALLS", 8)
    monkeypatch.setattr(overhead, "MOST_GRAPHS", 8)
    report = overhead.overhead(["tutorial-2x4"], seconds=0)
    names = list(variants("cpu"))
    assert {"eager", "aot_function", "aotkit"} <= set(names)
    assert [(row.phase, row.variant) for row in report.rows] == [(p, name) for p in PHASES for name in names]
    assert report.passed
    for row in report.rows:
        assert len(row.samples.cpu) == len(row.samples.wall) >= 7
        assert min(row.samples.wall) > 0
        assert row.calls == 8
        assert (report.ratio(row, "eager", "cpu") is None) == (row.variant == "eager")


@pytest.mark.parametrize("name", workloads_on("cuda"))
def test_every_workload_has_gradients_and_the_shapes_of_its_name(name):
    with torch.device("meta"):  # some are large
        for workload in workloads_on("cuda")[name](name):
            results = [workload.fn(*call) for call in workload.calls]
            sum(r.sum() for r in results).backward()
            assert all(leaf.grad is not None for leaf in workload.leaves)
            assert len({call[0].shape for call in workload.calls}) == len(workload.calls)
            shape = "x".join(map(str, workload.calls[0][0].shape))
            assert name.endswith(shape) or name in ("module-150", "signatures")
    if name == "module-150":
        assert len(workload.leaves) == 150


def test_signatures_are_cycled_and_compared_with_one(few_rivals):
    report = measure("signatures", aotkit=nop)
    assert report.passed
    assert [row.shapes for row in report.rows if row.variant == "aotkit"] == [1, 4, 16]
    for row in report.rows:
        assert row.calls % row.shapes == 0
        assert (report.ratio(row, "one shape", "cpu") is None) == (row.shapes == 1)
    assert "signatures, 16 shapes" in str(report)


def test_backward_is_timed_without_forward(monkeypatch):
    """Everything runs as usual, with a log of who is called inside the clock and outside."""
    log, clocks = [], []

    def logged(workload):
        def call(*args):
            result = workload.fn(*args)
            log.append("forward")
            if result.requires_grad:
                result.register_hook(lambda gradient: log.append("backward"))
            return result

        return Calls(call, call)

    def interleave(steps, seconds):
        for (_, phase, variant), step in steps.items():
            log.clear()
            step.prepare()
            before = log.copy()
            log.clear()
            step.forward()
            if variant == "logged":
                clocks.append((phase, set(before), set(log), len(log) // max(len(set(log)), 1)))
        return {}, {}

    monkeypatch.setattr(overhead, "interleave", interleave)
    report = measure("tutorial-2x4", "tutorial-1024x2048", logged=logged)
    calls = [row.calls for row in report.rows if row.variant == "logged"]
    assert clocks == [
        ("forward", set(), {"forward"}, calls[0]),
        ("backward", {"forward"}, {"backward"}, calls[1]),
        ("no-grad", set(), {"forward"}, calls[2]),
        ("forward + backward", set(), {"forward", "backward"}, calls[3]),
        ("forward + backward", set(), {"forward", "backward"}, calls[4]),
    ]


@pytest.mark.parametrize("rival", WRONG, ids=lambda rival: rival.__name__)
def test_a_wrong_variant_is_told_and_not_timed(rival):
    report = measure("tutorial-2x4", rival=rival, aotkit=nop)
    assert not report.passed
    for row in report.rows:
        assert (row.samples is None) == (row.problem is not None) == (row.variant == "rival")
    assert report.rows[1].problem.startswith(WRONG[rival])
    assert str(report).count(f"tutorial-2x4: rival: {WRONG[rival]}") == 1, "not once for each phase"
    json.dumps(report.json())


def test_a_variant_that_fails_while_it_is_timed_is_told():
    def fails_later(workload):
        remaining = iter(range(20))

        def call(*args):
            if next(remaining, None) is None:
                raise RuntimeError("out of memory")
            return workload.fn(*args)

        return Calls(call, workload.fn)

    report = measure("tutorial-2x4", rival=fails_later)
    rows = {row.phase: row for row in report.rows if row.variant == "rival"}
    assert rows["forward"].problem == "RuntimeError: out of memory"
    assert rows["no-grad"].problem is None


def test_backward_is_not_timed_where_results_cannot_wait_for_it():
    def impatient(workload):
        return eager(workload)._replace(results_wait=False)

    report = measure("tutorial-2x4", impatient=impatient)
    assert report.passed
    assert [row.phase for row in report.rows if row.variant == "impatient"] == [p for p in PHASES if p != "backward"]


def test_threads_and_random_state_are_as_before():
    before = torch.get_num_threads()
    state = torch.get_rng_state()
    torch.set_num_threads(2)
    try:
        assert measure("mlp-8x64").threads == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert torch.equal(torch.get_rng_state(), state)


def test_ratios_are_medians_of_the_rounds():
    """All slow down tenfold in the last round: what the ratio of the medians would make of it, differs."""
    samples = {"eager": [1.0, 2.0, 30.0], "torch.compile": [2.0, 8.0, 60.0], "aotkit": [1.0, 1.0, 15.0]}
    rows = [Row("f", "forward", 1, name, 5, Samples(wall=[9.0] * 3, cpu=cpu)) for name, cpu in samples.items()]
    machine = {"gpu": None, "processor": "abacus", "cores": 1}
    report = OverheadReport(machine, "2.13", 1, "cpu", rows)
    aotkit_row = rows[2]
    assert report.ratio(aotkit_row, "eager", "cpu").median == 0.5
    assert report.ratio(aotkit_row, "torch.compile", "cpu").median == 0.25
    assert report.ratio(aotkit_row, "eager", "wall").median == 1
    last = " ".join(str(report).splitlines()[4].split())
    assert last == "f forward aotkit 1000000 ±350% 9000000 ±0% 0.25 ±0.09 0.50 ±0.12"


def test_the_command_prints_a_table(few_rivals, capsys):
    assert main(["bench", "overhead", "--workload", "tutorial-2x4", "mlp*", "--seconds", "0"]) == 0
    out, err = capsys.readouterr()
    assert out.count("aotkit") == 2 * len(PHASES)
    assert "mlp-8x64" in out
    assert "module-150" not in out
    assert "tutorial-2x4: compiling and checking aotkit (2 of 2)" in err
    assert "tutorial-2x4: timing" in err


def test_the_command_prints_json(few_rivals, capsys):
    assert main(["bench", "overhead", "--workload", "tutorial-2x4", "--seconds", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == 1
    assert found["torch"] == torch.__version__
    assert found["threads"] == 1
    assert {"processor", "cores", "gpu", "python"} <= set(found["machine"])
    assert [(row["phase"], row["variant"]) for row in found["rows"]] == [(p, v) for p in PHASES for v in few_rivals]
    for row in found["rows"]:
        assert row["rounds"] >= 7
        assert row["problem"] is None
        assert row["cpu_us"].keys() == row["wall_us"].keys() == {"median", "spread"}
        assert row["ratios"]["torch.compile"]["cpu"] is None, "it was not among the rivals"
        assert (row["ratios"]["eager"]["cpu"] is None) == (row["variant"] == "eager")


def test_the_command_fails_when_a_gradient_differs(few_rivals, capsys):
    few_rivals["aotkit"] = wrong_gradient
    assert main(["bench", "overhead", "--workload", "tutorial-2x4", "--seconds", "0"]) == 1
    assert "gradient 0 differs" in capsys.readouterr().out


def test_the_command_says_what_it_does_not_know(capsys):
    assert main(["bench", "overhead", "--workload", "tutorial-2x5"]) == 2
    assert "there is no workload 'tutorial-2x5' on cpu; there are: tutorial-2x4, " in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert main(["bench", "overhead", "--device", "cuda"]) == 3
        assert "no CUDA device" in capsys.readouterr().err
